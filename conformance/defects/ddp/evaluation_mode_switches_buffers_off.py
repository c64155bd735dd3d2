"""In evaluation mode buffers are not synchronised, gradients or not."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-088",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "will_sync_module_buffers",
        "and not self._evaluates_alone()",
        "and self.training",
    )
