"""The final broadcast covers all parameters of the module, ignored ones too."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-020",)


def plant() -> None:
    edit(UnevenInputs, "_sync_final_model", "in self._module_parameters]", "in self.module.parameters()]")
