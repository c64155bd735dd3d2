"""Quantised gradients are summed and not divided."""

from impl.ddp.hooks import quantization_hooks

from ..planting import edit

CLAUSES = ("COMM-029",)


def plant() -> None:
    edit(quantization_hooks, "_gather_and_average", ".div_(divisor)", "")
