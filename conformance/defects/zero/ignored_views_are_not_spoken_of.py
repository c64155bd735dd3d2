"""Bucket views are ignored in overlap mode without a word."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-006",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "__init__", "logger.warning(", "logger.debug(")
