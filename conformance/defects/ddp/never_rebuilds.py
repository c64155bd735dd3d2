"""Buckets are never laid out in the order of arrival."""

from impl.ddp.planner import Planner

from ..planting import swap

CLAUSES = ("DDP-054",)


def plant() -> None:
    swap(Planner, "due", lambda self: False)
