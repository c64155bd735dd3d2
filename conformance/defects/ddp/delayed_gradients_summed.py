"""Delayed gradients are summed and not divided."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-122",)


def plant() -> None:
    edit(
        DelayedReduction,
        "_reduce",
        "kernels.divide(pending.wait(ddp._watch()), ddp._divisor())",
        "pending.wait(ddp._watch())",
    )
