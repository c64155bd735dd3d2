"""Ignored parameters are made equal to rank 0's at the start."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-149",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_synchronise_start",
        "params.managed_parameters(self.module, self.parameters_to_ignore)",
        "params.managed_parameters(self.module, set())",
    )
