"""Frozen parameters are left out when a context ends."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-016",)


def plant() -> None:
    edit(
        UnevenInputs,
        "_sync_final_model",
        "for parameter in self._module_parameters]",
        "for parameter in self._module_parameters if parameter.requires_grad]",
    )
