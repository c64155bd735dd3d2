"""The base constructor does not call the constructors of the other bases."""

from impl.join.hooks import Joinable

from ..planting import edit

CLAUSES = ("JOIN-004",)
WORLDS = (1,)


def plant() -> None:
    edit(Joinable, "__init__", "    super().__init__()\n", "")
