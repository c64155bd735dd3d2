"""The ranks that joined early are told that they came last, and the others that they did not."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-026", "JOIN-030")


def plant() -> None:
    edit(PlainPassage, "shadow", "return shadowed == 0", "return shadowed > 0")
