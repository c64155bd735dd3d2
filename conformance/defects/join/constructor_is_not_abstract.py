"""A joinable need not have a constructor of its own: the base's is no abstract method."""

from abc import update_abstractmethods

from impl.join.hooks import Joinable

from ..planting import edit, swap

CLAUSES = ("JOIN-002",)
WORLDS = (1,)


def plant() -> None:
    swap(Joinable, "__abstractmethods__", Joinable.__abstractmethods__)  # so that it comes back
    edit(Joinable, "__init__", "@abstractmethod\n", "")
    update_abstractmethods(Joinable)
