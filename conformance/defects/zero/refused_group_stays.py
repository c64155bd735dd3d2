"""In overlap mode an added group is refused only after it has been noted."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-025",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "add_param_group",
        "    if self._overlap_info is not None:\n",
        "    if self._overlap_info is not None:\n        super().add_param_group(param_group)\n",
    )
