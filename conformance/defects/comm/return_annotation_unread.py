"""Any return annotation is accepted."""

from impl.ddp.hooks import validation

from ..planting import swap

CLAUSES = ("COMM-005",)


def plant() -> None:
    swap(validation, "_is_future_of_tensor", lambda annotation: True)
