"""Tensors in the fields of a dataclass are not found."""

from impl.ddp import containers

from ..planting import edit

CLAUSES = ("DDP-102",)


def plant() -> None:
    edit(containers, "find_tensors", "if dataclasses.is_dataclass(value) and", "if dataclasses is None and")
