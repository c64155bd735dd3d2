"""Of the ranks that came last nobody but the highest of the group is told so."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-026", "JOIN-030")


def plant() -> None:
    edit(
        PlainPassage, "shadow",
        "return shadowed == 0",
        "return shadowed == 0 and self.team.rank == self.team.size - 1",
    )
