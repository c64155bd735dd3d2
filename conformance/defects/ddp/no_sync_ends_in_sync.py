"""Leaving no_sync switches synchronisation on, whatever it was before."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-075",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "no_sync",
        "self.require_backward_grad_sync = before",
        "self.require_backward_grad_sync = True",
    )
