"""Of buffers that do not fit into one broadcast, those of the last chunk are sent."""

from impl.comm import coalesce

from ..planting import edit

CLAUSES = ("DDP-005",)


def plant() -> None:
    edit(coalesce, "_chunks", "yield chunk\n                chunk, size", "chunk, size")
