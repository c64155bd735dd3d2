"""step() returns nothing, even if a closure has computed a loss."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-010",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "step", "    return loss\n", "    return None\n")
