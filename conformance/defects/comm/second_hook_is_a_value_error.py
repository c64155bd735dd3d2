"""A second registration is refused with a ValueError."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("COMM-007",)


def plant() -> None:
    edit(DistributedDataParallel, "_occupy_hook_slot", "            RuntimeError,", "            ValueError,")
