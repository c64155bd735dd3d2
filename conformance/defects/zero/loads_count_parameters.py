"""The load of a rank is the number of its parameters, not of their elements."""

from impl.zero.partition import ShardPlan

from ..planting import edit

CLAUSES = ("ZERO-007",)


def plant() -> None:
    edit(ShardPlan, "extended", "loads[owner] += numels[index]", "loads[owner] += 1")
