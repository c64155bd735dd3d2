"""Quantised values are read as if the smallest were zero."""

from impl.ddp.hooks import quantization_hooks

from ..planting import edit

CLAUSES = ("COMM-029",)


def plant() -> None:
    edit(quantization_hooks, "_decode", "levels.sub_(zero_point.unsqueeze(1)).mul_", "levels.mul_")
