"""Every joinable of the list is marked as the first, so each of them notifies."""

from impl.join.stamps import Stamps

from ..planting import edit

CLAUSES = ("JOIN-014", "JOIN-045", "JOIN-048")


def plant() -> None:
    edit(Stamps, "__init__", "is_first_joinable=place == 0", "is_first_joinable=True")
