"""Any annotation of the bucket is accepted."""

from impl.ddp.hooks import validation

from ..planting import swap

CLAUSES = ("COMM-004",)


def plant() -> None:
    swap(validation, "_is_bucket", lambda annotation: True)
