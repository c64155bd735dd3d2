"""Gradients stay after an optimizer in backward has used them."""

from impl.ddp.in_backward import OptimizersInBackward

from ..planting import edit

CLAUSES = ("DDP-129",)


def plant() -> None:
    edit(OptimizersInBackward, "step", "        parameter.grad = None", "        pass")
