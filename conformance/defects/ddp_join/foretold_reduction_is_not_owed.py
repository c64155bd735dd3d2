"""A reduction that the roll call foretold is forgotten, where the iteration has no backward."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-054",)


def plant() -> None:
    edit(Session, "_pay", "self._follow(act)", "pass")
