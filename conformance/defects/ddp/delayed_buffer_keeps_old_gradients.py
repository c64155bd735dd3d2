"""A delayed gradient that was set to None starts from what its view last held."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-123",)


def plant() -> None:
    edit(DelayedReduction, "after_forward", "            view.zero_()\n", "")
