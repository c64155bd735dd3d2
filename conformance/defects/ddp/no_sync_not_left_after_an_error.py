"""An exception inside no_sync leaves synchronisation switched off."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-075",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "no_sync",
        "    try:\n        yield\n    finally:\n        self",
        "    if True:\n        yield\n        self",
    )
