"""A reduction that could not be completed is given up at the next forward without a word."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-062", "DDP-063")


def plant() -> None:
    swap(Reducer, "check_finished", lambda self: self.abandon())
