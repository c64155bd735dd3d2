"""The final broadcast takes the buffers that were there before the last forward."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-019",)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "    self._assign_modules_buffers()\n", "")
