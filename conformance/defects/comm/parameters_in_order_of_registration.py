"""A bucket's parameters come in another order than its gradients."""

from impl.ddp.bucket import GradBucket

from ..planting import swap

CLAUSES = ("COMM-016",)


def plant() -> None:
    swap(GradBucket, "parameters", lambda self: list(self._parameters)[::-1])
