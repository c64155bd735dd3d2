"""Entering gives the context itself to the as target."""

from impl.join.context import Join

from ..planting import swap

CLAUSES = ("JOIN-021",)


def plant() -> None:
    def enter(self: Join) -> Join:
        right(self)
        return self

    right = swap(Join, "__enter__", enter)
