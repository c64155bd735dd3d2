"""Removing the hooks leaves them in place."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-066",)


def plant() -> None:
    swap(Reducer, "remove_hooks", lambda self: None)
