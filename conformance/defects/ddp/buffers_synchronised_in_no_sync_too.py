"""Buffers are broadcast whatever the former forward said."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-081", "DDP-096")


def plant() -> None:
    edit(DistributedDataParallel, "will_sync_module_buffers", "allowed and self", "self")
