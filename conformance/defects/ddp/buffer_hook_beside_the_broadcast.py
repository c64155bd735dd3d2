"""The broadcast is made although a buffer hook is registered."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-093",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_sync_module_buffers",
        "    else:\n        self._broadcast",
        "    if True:\n        self._broadcast",
    )
