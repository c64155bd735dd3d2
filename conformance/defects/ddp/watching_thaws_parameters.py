"""A frozen parameter is thawed to find its node, and stays so."""

from impl.ddp import kernels

from ..planting import edit

CLAUSES = ("DDP-100",)


def plant() -> None:
    edit(kernels, "accumulator", "parameter.requires_grad_(False)", "pass")
