"""The first joinable's notification is waited for inside, and returns nothing."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-031", "JOIN-048")


def plant() -> None:
    edit(PlainPassage, "notify", "    return self._last\n", "    self._last.wait()\n    return None\n")
