"""Keyword arguments do not reach the wrapped module."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-036",)


def plant() -> None:
    edit(DistributedDataParallel, "_run_ddp_forward", "self.module(*inputs, **kwargs)", "self.module(*inputs)")
