"""The search for unused parameters follows only the first input of every operation."""

from impl.ddp import unused

from ..planting import edit

CLAUSES = ("DDP-067", "DDP-099", "DDP-101")


def plant() -> None:
    edit(unused, "parameters_behind", "in node.next_functions:", "in node.next_functions[:1]:")
