"""A bucket's gradients are copies of its buffer's parts."""

from impl.ddp.bucket import GradBucket

from ..planting import swap

CLAUSES = ("COMM-016",)


def plant() -> None:
    swap(GradBucket, "gradients", lambda self: [view.clone() for view in self._views])
