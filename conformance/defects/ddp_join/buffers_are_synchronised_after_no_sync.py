"""The forward after one under no_sync synchronises the buffers, although nothing was reduced in between."""

from impl.ddp.wrapper import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDPJ-028",)


def plant() -> None:
    edit(DistributedDataParallel, "_post_forward", "= ticket.sync", "= True")
