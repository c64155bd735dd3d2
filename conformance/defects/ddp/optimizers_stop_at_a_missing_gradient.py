"""The first parameter without a gradient ends the round of the optimizers in backward."""

from impl.ddp.in_backward import OptimizersInBackward

from ..planting import edit

CLAUSES = ("DDP-129",)


def plant() -> None:
    edit(OptimizersInBackward, "step", "continue", "break")
