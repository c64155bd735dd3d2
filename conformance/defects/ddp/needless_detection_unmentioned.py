"""Nobody is told that the search for unused parameters finds none."""

from impl.ddp import unused

from ..planting import swap

CLAUSES = ("DDP-104",)


def plant() -> None:
    swap(unused, "tell_needless", lambda: None)
