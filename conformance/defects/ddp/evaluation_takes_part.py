"""A gradient-free forward goes through the same preparations as a training one."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-047",)


def plant() -> None:
    edit(DistributedDataParallel, "_pre_forward", "sync = torch.is_grad_enabled() and self", "sync = self")
