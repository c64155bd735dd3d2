"""A rank whose last forward had no backward leaves joined ranks alone in the reduction that it foretold."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-054",)


def plant() -> None:
    edit(Session, "_catch_up", "    self._pay()\n", "")
