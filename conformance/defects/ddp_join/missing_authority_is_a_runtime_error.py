"""A search for authority without candidates raises a RuntimeError."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-021",)


def plant() -> None:
    edit(UnevenInputs, "_find_common_rank", "ValueError,", "RuntimeError,")
