"""The warning of a skew comes in every iteration above the threshold."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-036",)


def plant() -> None:
    edit(Passage, "_warn_of_skew", "    self._warned_of_skew = True\n", "")
