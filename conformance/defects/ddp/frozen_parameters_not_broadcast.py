"""Only parameters that require a gradient are made equal at the start."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-025",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_synchronise_start",
        "[item.parameter for item in managed] +",
        "[item.parameter for item in managed if item.parameter.requires_grad] +",
    )
