"""Rows of a sparse gradient for which there is no room in the message are never sent."""

from impl.comm.sparse import SparseRound

from ..planting import edit

CLAUSES = ("DDP-057",)


def plant() -> None:
    edit(SparseRound, "_read", "if any(rest):", "if any(rest) and not any(first.rooms):")
