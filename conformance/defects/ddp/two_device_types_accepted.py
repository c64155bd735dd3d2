"""A model on two types of devices is accepted."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-010",)


def plant() -> None:
    edit(options, "place", "len(types) != 1", "len(types) < 1")
