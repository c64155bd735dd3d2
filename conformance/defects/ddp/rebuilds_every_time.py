"""Buckets are laid out anew before every forward."""

from impl.ddp.shared import SharedFacts

from ..planting import swap

CLAUSES = ("DDP-054",)


def plant() -> None:
    swap(SharedFacts, "rebuild_due", lambda self: not self.searched and self.reductions >= 1)
