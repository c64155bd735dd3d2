"""A parameter that is frozen with a gradient is neither stepped nor sent any more."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-013",)


def plant() -> None:
    edit(Sending, "_also_send", "old or new", "new")
