"""The flat buffer of delayed gradients is emptied after every forward."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-123",)


def plant() -> None:
    edit(DelayedReduction, "after_forward", "if parameter.grad is None:", "if view is not None:")
