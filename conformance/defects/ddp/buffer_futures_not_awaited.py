"""Nobody waits for the futures that a buffer hook returns."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-095",)


def plant() -> None:
    swap(Reducer, "_await_others", lambda self: self.other_futures.clear())
