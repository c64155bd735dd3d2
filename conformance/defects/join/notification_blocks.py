"""A notification waits until every rank has notified."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-051",)


def plant() -> None:
    edit(PlainPassage, "notify", "    return self._last\n", "    self._last.wait()\n    return self._last\n")
