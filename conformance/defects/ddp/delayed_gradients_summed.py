"""Delayed gradients are summed and not divided."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-122",)


def plant() -> None:
    edit(
        DelayedReduction,
        "_reduce",
        "kernels.divide(flat, 1 if divides_first(flat.dtype) else divisor)",
        "pass",
    )
