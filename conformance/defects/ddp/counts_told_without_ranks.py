"""The error about different numbers of parameters does not say which rank has how many."""

from impl.ddp import params

from ..planting import edit

CLAUSES = ("DDP-027",)


def plant() -> None:
    edit(params, "_difference", "{found}", "see the model")
