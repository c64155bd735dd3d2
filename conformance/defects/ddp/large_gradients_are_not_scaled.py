"""Gradients that are large enough to be copied one by one are summed and not averaged."""

from impl.ddp.filling import Filling

from ..planting import edit

CLAUSES = ("DDP-049",)


def plant() -> None:
    edit(Filling, "fill", "torch.mul(source, factor, out=view)", "view.copy_(source)")
