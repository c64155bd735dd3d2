"""init_sync=False is ignored: the initial broadcast is made all the same."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-026",)


def plant() -> None:
    edit(DistributedDataParallel, "__init__", "if init_sync:", "if init_sync is not None:")
