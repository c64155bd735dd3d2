"""Nobody is warned of a large skew in a context of plain joinables."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-035", "JOIN-036")


def plant() -> None:
    edit(PlainPassage, "shadow", "self._warn_of_skew(shadowed)", "pass")
