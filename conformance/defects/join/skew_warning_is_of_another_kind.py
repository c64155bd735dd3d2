"""The skew is reported as a RuntimeWarning."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-035",)


def plant() -> None:
    edit(Passage, "_warn_of_skew", "UserWarning", "RuntimeWarning")
