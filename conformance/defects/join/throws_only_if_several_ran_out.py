"""Active ranks go on as long as no more than one rank has run out."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-042",)


def plant() -> None:
    edit(PlainPassage, "notify", "if exhausted:", "if exhausted > 1:")
