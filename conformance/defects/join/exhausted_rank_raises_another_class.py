"""The rank that has exhausted its inputs raises a StopIteration."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-041", "JOIN-046")


def plant() -> None:
    edit(Passage, "_raise_exhausted", "raise InputsExhausted(text)", "raise StopIteration(text)")
