"""Optimizers on ignored parameters are stepped by DDP too."""

from impl.ddp.in_backward import OptimizersInBackward

from ..planting import edit

CLAUSES = ("DDP-130",)


def plant() -> None:
    edit(OptimizersInBackward, "of", "ddp.reducer.parameters", "ddp.module.parameters()")
