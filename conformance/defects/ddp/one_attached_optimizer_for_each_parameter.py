"""Of several optimizers that are attached to a parameter only the first one steps."""

from impl.ddp.in_backward import OptimizersInBackward

from ..planting import edit

CLAUSES = ("DDP-129",)


def plant() -> None:
    edit(OptimizersInBackward, "step", "in getattr(parameter, _MARK):", "in getattr(parameter, _MARK)[:1]:")
