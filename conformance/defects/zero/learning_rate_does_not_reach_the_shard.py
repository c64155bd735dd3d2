"""Changed settings of the exposed groups do not reach the local optimizer."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-011",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "_local_step", "    copy_settings(self.param_groups, self.optim.param_groups)\n", "")
