"""Hooks of the mode without buckets get parameter and gradient in the wrong order."""

from impl.ddp.per_parameter import PerParameterReduction

from ..planting import edit

CLAUSES = ("DDP-167",)


def plant() -> None:
    edit(PerParameterReduction, "reduce", "(parameter.grad, parameter)", "(parameter, parameter.grad)")
