"""A rank whose loop never ran leaves at once, without shadowing anybody."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-032", "JOIN-046")


def plant() -> None:
    edit(
        PlainPassage, "shadow",
        "    if self._last is not None:\n        self._last.wait()\n",
        "    if self._last is None:\n        return False\n    self._last.wait()\n",
    )
