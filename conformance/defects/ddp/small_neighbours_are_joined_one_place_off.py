"""Where many small gradients of like shape are joined, each comes to the place of its neighbour."""

from impl.ddp.filling import Filling

from ..planting import edit

CLAUSES = ("DDP-049",)


def plant() -> None:
    edit(Filling, "_join", "torch.cat(sources[run], out=target)", "torch.cat(sources[run][::-1], out=target)")
