"""Inside no_sync gradients are reduced as outside."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-072", "DDP-074")


def plant() -> None:
    edit(DistributedDataParallel, "_post_forward", "Ticket(sync=self.require_backward_grad_sync)", "Ticket(sync=True)")
