"""What an evaluation left to be synchronised waits for the next synchronised forward, past all accumulating ones."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-081",)


def plant() -> None:
    edit(
        DistributedDataParallel,
        "_pre_forward",
        "if torch.is_grad_enabled() and self._sync_due_after_evaluation:",
        "if torch.is_grad_enabled() and self.require_backward_grad_sync and self._sync_due_after_evaluation:",
    )
