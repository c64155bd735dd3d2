"""Every rank is told that it came last."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-030",)


def plant() -> None:
    edit(PlainPassage, "shadow", "return shadowed == 0", "return True")
