"""Ignored parameters are averaged like others."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-149",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_build_reducer",
        "params.managed_parameters(self.module, self.parameters_to_ignore)",
        "params.managed_parameters(self.module, set())",
    )
