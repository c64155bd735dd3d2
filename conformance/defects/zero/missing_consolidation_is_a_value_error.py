"""Asking for the state without a consolidation raises a ValueError."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-015",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "state_dict", "raise RuntimeError(", "raise ValueError(")
