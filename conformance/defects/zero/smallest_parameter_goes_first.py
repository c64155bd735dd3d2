"""Parameters are dealt out in ascending order of size."""

from impl.zero.partition import ShardPlan

from ..planting import edit

CLAUSES = ("ZERO-007",)


def plant() -> None:
    edit(ShardPlan, "extended", "key=lambda i: -numels[i]", "key=lambda i: numels[i]")
