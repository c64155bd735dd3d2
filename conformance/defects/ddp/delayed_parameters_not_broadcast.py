"""Delayed parameters keep each rank's own initial values."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-121",)


def plant() -> None:
    edit(DelayedReduction, "of", "[parameter.detach() for parameter in parameters]", "[]")
