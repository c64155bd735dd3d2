"""A rank that leaves by an error tells nobody, so its peers wait until their time is up."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-024", "JOIN-039")


def plant() -> None:
    edit(Passage, "report", "self._notes.leave(error)", "pass")
