"""In throwing mode the rank that has run out raises without adding itself to the count of exhausted ranks."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-042", "JOIN-046")


def plant() -> None:
    edit(
        PlainPassage, "shadow",
        "self._count_exhausted(self.team, self.device, 1)",
        "self._count_exhausted(self.team, self.device, 0)",
    )
