"""In overlap mode the state is not refused before the first backward: it fails with an AttributeError."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import swap

CLAUSES = ("ZERO-024",)


def plant() -> None:
    swap(ZeroRedundancyOptimizer, "_check_overlap_initialized", lambda self: None)
