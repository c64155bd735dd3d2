"""Ranks compare shapes, not strides."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-030",)


def plant() -> None:
    edit(params, "_describe", ", strides {tensor.stride()}", "")
