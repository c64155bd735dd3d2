"""An evaluation never synchronises buffers, so that every rank evaluates a model of its own."""

from impl.ddp import DistributedDataParallel

from ..planting import edit

CLAUSES = ("DDP-088",)


def plant() -> None:
    edit(
        DistributedDataParallel, "_evaluates_alone",
        "return self._join_session is not None or not self.require_backward_grad_sync",
        "return True",
    )
