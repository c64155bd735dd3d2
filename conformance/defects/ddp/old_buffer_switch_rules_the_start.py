"""The old switch for buffers decides about the start although the newer one was given, too."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-083",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "__init__",
        "broadcast_buffers is not False or forward_sync_buffers is not None",
        "broadcast_buffers is not False",
    )
