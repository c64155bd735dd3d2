"""A model is refused only if it has no parameters at all, not if all of them are frozen."""

from impl.ddp import options

from ..planting import edit

CLAUSES = ("DDP-006",)


def plant() -> None:
    edit(options, "place", "not any(parameter.requires_grad for parameter in everything)", "not everything")
