"""A search for authority without candidates raises, but does not note the error in the model's log."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-021",)


def plant() -> None:
    edit(UnevenInputs, "_find_common_rank", "self._log_and_throw(\n            ValueError,", "raise ValueError(")
