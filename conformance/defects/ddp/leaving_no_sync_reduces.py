"""Leaving no_sync averages what has accumulated at once."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-076",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "no_sync",
        "self.require_backward_grad_sync = before",
        "self.require_backward_grad_sync = before\n"
        "        for parameter in self.reducer.parameters:\n"
        "            if parameter.grad is not None:\n"
        "                dist.all_reduce(parameter.grad, group=self.process_group)\n"
        "                parameter.grad /= dist.get_world_size(self.process_group)",
    )
