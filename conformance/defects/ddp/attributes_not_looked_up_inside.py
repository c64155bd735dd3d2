"""An attribute that DDP lacks is not looked up on the wrapped module."""

from torch import nn

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-040",)


def plant() -> None:
    swap(DistributedDataParallel, "__getattr__", nn.Module.__getattr__)
