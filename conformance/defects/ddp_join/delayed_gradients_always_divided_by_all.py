"""Delayed gradients are divided by the number of all ranks where the active ones were asked for."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDPJ-039",)


def plant() -> None:
    edit(DelayedReduction, "_reduce", "ddp._divisor()", "ddp.reducer.team.size")
