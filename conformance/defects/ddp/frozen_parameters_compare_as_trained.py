"""The comparison of the ranks' models does not see which parameters are trained."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-027",)


def plant() -> None:
    edit(params, "_describe", '", requires grad" if tensor.requires_grad else ""', '""')
