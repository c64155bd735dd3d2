"""The final broadcast covers all buffers of the module, ignored ones too."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-020",)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "state += self.modules_buffers", "state += list(self.module.buffers())")
