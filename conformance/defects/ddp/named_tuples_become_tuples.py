"""A named tuple comes back as a plain tuple where the graph is searched."""

from impl.ddp import containers

from ..planting import edit

CLAUSES = ("DDP-036", "DDP-102")


def plant() -> None:
    edit(containers, "_sequence_like", "return original._make(items) if", "return tuple(items) if")
