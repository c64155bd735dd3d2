"""The final broadcast leaves the buffers out."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-019",)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "if self.forward_sync_buffers:", "if False:")
