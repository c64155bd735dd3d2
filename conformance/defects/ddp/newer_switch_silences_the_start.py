"""forward_sync_buffers=False switches off the broadcast at construction too."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-083",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "__init__",
        "buffers if syncs_buffers_at_start else {}",
        "buffers if self.forward_sync_buffers else {}",
    )
