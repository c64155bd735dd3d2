"""The wrapped module's forward is called directly, past its hooks."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-038",)


def plant() -> None:
    edit(DistributedDataParallel, "_run_ddp_forward", "self.module(", "self.module.forward(")
