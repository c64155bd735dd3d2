"""Unused parameters are searched for unless that is switched off."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-002",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "__init__",
        "find_unused_parameters: bool = False",
        "find_unused_parameters: bool = True",
    )
