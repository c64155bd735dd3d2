"""Parameters are dealt out in the order in which they are given."""

from impl.zero.partition import ShardPlan

from ..planting import edit

CLAUSES = ("ZERO-007",)


def plant() -> None:
    edit(ShardPlan, "extended", "sorted(range(len(numels)), key=lambda i: -numels[i])", "range(len(numels))")
