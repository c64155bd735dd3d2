"""Buckets are never laid out in the order of arrival."""

from impl.ddp.shared import SharedFacts

from ..planting import swap

CLAUSES = ("DDP-054",)


def plant() -> None:
    swap(SharedFacts, "rebuild_due", lambda self: False)
