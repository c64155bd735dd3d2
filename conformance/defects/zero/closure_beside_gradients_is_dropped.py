"""A closure that is given together with gradients is dropped without a word."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-028",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "_local_step", "        if closure is not None:\n", "        if False:\n")
