"""In throwing mode the rank that has run out tells the others and then leaves as if nothing had happened."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-041", "JOIN-043", "JOIN-046")


def plant() -> None:
    edit(PlainPassage, "shadow", "self._raise_exhausted_here()", "return False")
