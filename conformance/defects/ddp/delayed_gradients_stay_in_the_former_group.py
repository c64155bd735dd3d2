"""Delayed gradients are averaged over the group of the first reduction, whatever the group is now."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-162",)


def plant() -> None:
    edit(DelayedReduction, "_start", "ddp.reducer.team", 'self.__dict__.setdefault("_team", ddp.reducer.team)')
