"""Buffers are looked up at construction only; one that the module replaces is left behind."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-084",)


def plant() -> None:
    edit(DistributedDataParallel, "_sync_module_buffers", "    self._assign_modules_buffers()\n", "")
