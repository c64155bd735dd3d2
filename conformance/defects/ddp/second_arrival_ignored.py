"""A gradient that nobody expects any more is quietly left local."""

from impl.ddp.use import Use

from ..planting import swap

CLAUSES = ("DDP-069", "DDP-106")


def plant() -> None:
    swap(Use, "refuse_second_arrival", lambda self, index: None)
