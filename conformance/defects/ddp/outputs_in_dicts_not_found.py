"""Tensors among a dictionary's values are not found."""

from impl.ddp import containers

from ..planting import edit

CLAUSES = ("DDP-102",)


def plant() -> None:
    edit(containers, "find_tensors", "for item in value.values()", "for item in value")
