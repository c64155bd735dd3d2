"""Buckets are never laid out in the order of arrival."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-054",)


def plant() -> None:
    swap(Reducer, "replan_due", lambda self: False)
