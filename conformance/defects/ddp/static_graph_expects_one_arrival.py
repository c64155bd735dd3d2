"""A static graph expects each parameter once, however often it arrived in the first iteration."""

from impl.ddp.use import Use

from ..planting import edit

CLAUSES = ("DDP-111",)


def plant() -> None:
    edit(Use, "learn", "is None else -count", "is None else 1")
