"""What the local optimizer changes in its groups is not shown, and undone by the next step."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-011",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "_local_step", "    copy_settings(self.optim.param_groups, self.param_groups)\n", "")
