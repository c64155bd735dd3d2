"""A rank that shadows still counts itself as active when its main hook notifies."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-055",)


def plant() -> None:
    edit(PlainPassage, "notify", "if self._phase is not Phase.LIVE or not joinable", "if not joinable")
