"""Reducing parameter by parameter sums the gradients and does not divide."""

from impl.ddp.per_parameter import PerParameterReduction

from ..planting import edit

CLAUSES = ("DDP-167",)


def plant() -> None:
    edit(PerParameterReduction, "reduce", "kernels.divide(parameter.grad, after)", "pass")
