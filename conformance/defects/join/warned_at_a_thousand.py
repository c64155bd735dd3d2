"""A skew of exactly a thousand iterations is warned of already."""

from impl.join.passage import Passage

from ..planting import edit

CLAUSES = ("JOIN-035",)


def plant() -> None:
    edit(Passage, "_warn_of_skew", "shadowed <= SKEW", "shadowed < SKEW")
