"""bfloat16 hooks are accepted on any machine."""

from impl.ddp.hooks import validation

from ..planting import swap

CLAUSES = ("COMM-006",)


def plant() -> None:
    swap(validation, "bfloat16_can_be_reduced", lambda: True)
