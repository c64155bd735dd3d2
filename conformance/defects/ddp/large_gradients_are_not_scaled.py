"""Gradients that are large enough to be copied one by one are summed and not averaged."""

from impl.ddp import kernels

from ..planting import edit

CLAUSES = ("DDP-049",)


def plant() -> None:
    edit(kernels, "copy_scaled", "torch.mul(source, factor, out=view)", "view.copy_(source)")
