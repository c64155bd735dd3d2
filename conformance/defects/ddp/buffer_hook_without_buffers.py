"""A buffer hook is called for a model that has no buffers, with an empty dictionary."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-096",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "will_sync_module_buffers",
        "return wanted and len(self.modules_buffers) > 0",
        "return wanted",
    )
