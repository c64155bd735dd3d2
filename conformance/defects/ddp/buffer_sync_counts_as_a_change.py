"""Overwriting buffers bumps their versions, and a graph that saved them is lost."""

from impl.comm import coalesce

from ..planting import edit

CLAUSES = ("DDP-086",)


def plant() -> None:
    edit(coalesce, "broadcast_coalesced", "[tensor.data for", "[tensor.detach() for")
