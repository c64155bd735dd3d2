"""Bucket views together with overlap are an error instead of a warning."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-006",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "__init__", "logger.warning(", "raise ValueError(")
