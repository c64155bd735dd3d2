"""In overlap mode nobody notices a change of requires_grad."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import swap

CLAUSES = ("ZERO-027",)


def plant() -> None:
    swap(ZeroRedundancyOptimizer, "_check_trainability_unchanged", lambda self: None)
