"""A new group's first forward finds that enough reductions have been made to rebuild the buckets."""

from impl.ddp.planner import Planner

from ..planting import edit

CLAUSES = ("DDP-164",)


def plant() -> None:
    edit(Planner, "first", "self.reductions, self.rebuilt = 0, False", "self.rebuilt = False")
