"""The main hooks of an iteration run in the reverse of the list's order."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-027", "JOIN-034")


def plant() -> None:
    edit(PlainPassage, "shadow", "for hook in self._hooks:", "for hook in reversed(self._hooks):")
