"""Buckets are laid out anew before every forward."""

from impl.ddp.planner import Planner

from ..planting import swap

CLAUSES = ("DDP-054",)


def plant() -> None:
    swap(Planner, "due", lambda self: not self._use.searched and self.reductions >= 1)
