"""A rank that came one iteration short is told that it came last too."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-030",)


def plant() -> None:
    edit(PlainPassage, "shadow", "return shadowed == 0", "return shadowed <= 1")
