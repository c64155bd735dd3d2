"""An active rank does the iteration in which it hears that another has run out, and raises at the next one."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-042", "JOIN-046")


def plant() -> None:
    edit(
        PlainPassage, "notify",
        "        if exhausted:\n            self._raise_exhausted_elsewhere(exhausted)\n",
        "        self._late = getattr(self, '_exhausted', 0)\n"
        "        self._exhausted = exhausted\n"
        "        if self._late:\n            self._raise_exhausted_elsewhere(self._late)\n",
    )
