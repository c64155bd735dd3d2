"""Buckets are laid out anew before every forward."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-054",)


def plant() -> None:
    swap(Reducer, "replan_due", lambda self: not self.find_unused and self.reductions >= 1)
