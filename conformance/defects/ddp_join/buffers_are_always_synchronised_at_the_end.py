"""The final broadcast takes the buffers along even where buffers are not to be broadcast."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-019",)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "if self.forward_sync_buffers:", "if self.modules_buffers:")
