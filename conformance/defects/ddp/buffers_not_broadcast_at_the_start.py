"""Parameters are made equal at the start, buffers are not."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-025", "DDP-083")


def plant() -> None:
    edit(DistributedDataParallel, "_synchronise_start", "+ list(buffers.values())", "")
