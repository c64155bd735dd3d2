"""In overlap mode step() does nothing without a word."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("HOOK-021",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "step", "logger.warning(", "logger.debug(")
