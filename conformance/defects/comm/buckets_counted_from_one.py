"""The first bucket has index 1."""

from impl.ddp.bucket import GradBucket

from ..planting import swap

CLAUSES = ("COMM-016",)


def plant() -> None:
    swap(GradBucket, "index", lambda self: self._index + 1)
