"""The logger is pickled along."""

from impl.ddp import renewal

from ..planting import swap

CLAUSES = ("DDP-155",)


def plant() -> None:
    swap(renewal, "_OF_THIS_PROCESS", tuple(name for name in renewal._OF_THIS_PROCESS if name != "logger"))
