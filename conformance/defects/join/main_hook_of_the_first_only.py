"""Only the first joinable's main hook runs on a joined rank, as if only it communicated."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-025", "JOIN-027", "JOIN-034")


def plant() -> None:
    edit(PlainPassage, "shadow", "for hook in self._hooks:", "for hook in self._hooks[:1]:")
