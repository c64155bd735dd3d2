"""Sums that are large enough to be delivered one by one are not divided."""

from impl.ddp import kernels

from ..planting import edit

CLAUSES = ("DDP-049",)
WORLDS = (3,)


def plant() -> None:
    edit(kernels, "copy_divided", "torch.div(view, divisor, out=target)", "target.copy_(view)")
