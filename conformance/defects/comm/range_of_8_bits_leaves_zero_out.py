"""The range of a channel begins at its least value although all of them are positive."""

from impl.ddp.hooks import quantization_hooks

from ..planting import edit

CLAUSES = ("COMM-029",)


def plant() -> None:
    edit(quantization_hooks, "_encode", "values.amin(dim=1).clamp_(max=0)", "values.amin(dim=1)")
