"""In overlap mode a group can be added, whose parameters nobody steps."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-025",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "add_param_group",
        "if self._under_construction:",
        "if self._under_construction or self._overlap_info is not None:",
    )
