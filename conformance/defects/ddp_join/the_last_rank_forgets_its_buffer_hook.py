"""A rank that is alone does not call its buffer hook."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-026",)


def plant() -> None:
    edit(UnevenInputs, "_keeps_buffers", " and self._buffer_hook is None", "")
