"""Owners of an added group are chosen without regard to what each rank owns already."""

from impl.zero.partition import ShardPlan

from ..planting import edit

CLAUSES = ("ZERO-014",)


def plant() -> None:
    edit(ShardPlan, "extended", "list(self.loads)", "[0] * self.world")
