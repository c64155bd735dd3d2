"""The last joinable of the list is marked as the first."""

from impl.join.stamps import Stamps

from ..planting import edit

CLAUSES = ("JOIN-014", "JOIN-048")


def plant() -> None:
    edit(Stamps, "__init__", "place == 0", "place == len(joinables) - 1")
