"""With mixed precision all parameters are full again at the end of a backward that runs inside another."""

from impl.ddp import kernels

from ..planting import swap

CLAUSES = ("DDP-135",)


def plant() -> None:
    swap(kernels, "running_node", lambda: None)
