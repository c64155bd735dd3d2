"""Backwards under no_sync are reduced like all others, and stepped in the middle of an accumulation."""

from impl.ddp.wrapper import DistributedDataParallel

from ..planting import edit

CLAUSES = ("HOOK-046", "DDPJ-028")


def plant() -> None:
    edit(
        DistributedDataParallel, "no_sync",
        "self.require_backward_grad_sync = False",
        "self.require_backward_grad_sync = before",
    )
