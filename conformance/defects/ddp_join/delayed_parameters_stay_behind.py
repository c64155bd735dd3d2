"""Delayed parameters are left out when a context ends."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-039",)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "if self._delayed is not None:", "if False:")
