"""Of several ranks that came last together only the highest is told so."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-026", "JOIN-030")


def plant() -> None:
    edit(
        PlainPassage, "shadow",
        "return shadowed == 0",
        "return shadowed == 0 and (bool(self._hooks) and self.team.rank == self.team.size - 1 or self._last is None)",
    )
