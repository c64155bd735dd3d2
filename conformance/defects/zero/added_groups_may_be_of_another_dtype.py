"""An added group is compared with itself and not with the parameters that are there."""

from impl.zero import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-014",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "add_param_group", '[*self._parameters(), *group["params"]]', 'group["params"]')
