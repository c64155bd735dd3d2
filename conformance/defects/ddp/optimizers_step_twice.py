"""An optimizer in backward steps with the local gradient, and again with the average."""

from impl.ddp.in_backward import OptimizersInBackward

from ..planting import swap

CLAUSES = ("DDP-129",)


def plant() -> None:
    swap(OptimizersInBackward, "_remove_original_hooks", lambda self: None)
