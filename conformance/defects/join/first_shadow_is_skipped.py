"""A joined rank runs no main hook for the iteration in which it finds that others go on."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-025", "JOIN-032")


def plant() -> None:
    edit(PlainPassage, "shadow", "for hook in self._hooks:", "for hook in self._hooks if shadowed else ():")
