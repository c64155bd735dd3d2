"""The optimizer never says that it is initialised."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("HOOK-013",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_init_zero_for_overlap",
        "    self._overlap_info.status = OverlapState.INITIALIZED\n",
        "",
    )
