"""Replacing a bucket's buffer has no effect."""

from impl.ddp.bucket import GradBucket

from ..planting import swap

CLAUSES = ("COMM-016", "COMM-021")


def plant() -> None:
    swap(GradBucket, "set_buffer", lambda self, buffer: None)
