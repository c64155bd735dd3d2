"""The delayed initialisation without overlap is refused with an error of its own making."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-028",)


def plant() -> None:
    edit(
        ZeroRedundancyOptimizer, "_init_zero_for_overlap",
        "if self._overlap_info is None:\n        raise AssertionError(",
        "if self._overlap_info is None:\n        raise RuntimeError(",
    )
