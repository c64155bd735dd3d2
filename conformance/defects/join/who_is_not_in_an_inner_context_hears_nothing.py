"""An error that all ranks of an inner context share is not told to the other ranks of the outer one."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-024",)
WORLDS = (3,)


def plant() -> None:
    edit(Passage, "report", " and error.passage is self", "")
