"""The local optimizer is built over all parameters, so every rank keeps the whole state."""

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import edit

CLAUSES = ("ZERO-009",)


def plant() -> None:
    edit(ZeroRedundancyOptimizer, "_local_group", " if owner == rank]", " if owner >= 0]")
