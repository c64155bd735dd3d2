"""Ranks compare names and dtypes of their models only."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-028", "DDP-030")


def plant() -> None:
    edit(
        params, "_describe", "shape {tuple(tensor.shape)}, {tensor.dtype}, strides {tensor.stride()}", "{tensor.dtype}"
    )
