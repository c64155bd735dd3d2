"""Of the two bfloat16 hooks only the plain one is refused without support."""

from impl.ddp.hooks import validation

from ..planting import swap

CLAUSES = ("COMM-006",)


def plant() -> None:
    swap(validation, "_BFLOAT16_HOOKS", ("bf16_compress_hook",))
