"""Parameters are dealt out round robin, without looking at loads."""

from impl.zero.partition import ShardPlan

from ..planting import edit

CLAUSES = ("ZERO-007",)


def plant() -> None:
    edit(ShardPlan, "extended", "owner = loads.index(min(loads))", "owner = index % self.world")
