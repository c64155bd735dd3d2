"""Reducing parameter by parameter goes on under no_sync."""

from impl.ddp.per_parameter import PerParameterReduction

from ..planting import edit

CLAUSES = ("DDP-167",)


def plant() -> None:
    edit(PerParameterReduction, "reduce", "not ddp.require_backward_grad_sync or ", "")
