"""broadcast_buffers=False leaves the broadcast at construction in place."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-082",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "__init__",
        "syncs_buffers_at_start = broadcast_buffers is not False or",
        "syncs_buffers_at_start = module is not None or",
    )
