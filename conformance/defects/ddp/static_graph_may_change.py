"""A static graph that leaves out a parameter is not complained of."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-106",)


def plant() -> None:
    right = swap(Reducer, "check_finished", lambda self: self.abandon() if self.use.static else right(self))
