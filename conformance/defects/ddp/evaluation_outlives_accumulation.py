"""What an evaluation left to be synchronised waits for the next synchronised forward, past all accumulating ones."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-081",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_post_forward",
        "if self._sync_due_after_evaluation:",
        "if self._sync_due_after_evaluation and self.require_backward_grad_sync:",
    )
