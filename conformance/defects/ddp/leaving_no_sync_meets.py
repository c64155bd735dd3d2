"""Leaving no_sync waits for the other ranks."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-076",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "no_sync",
        "self.require_backward_grad_sync = before",
        "self.require_backward_grad_sync = before\n        dist.barrier(self.process_group)",
    )
