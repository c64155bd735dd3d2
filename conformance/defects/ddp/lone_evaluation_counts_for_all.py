"""A rank that has evaluated alone takes buffers for synchronised that the others will synchronise."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-048",)


def plant() -> None:
    edit(DistributedDataParallel, "_post_forward", "if not self._evaluates_alone():", "if True:")
