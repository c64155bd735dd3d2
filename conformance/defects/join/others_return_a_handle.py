"""Every joinable gets the handle of the first one's notification."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-048",)


def plant() -> None:
    edit(
        PlainPassage, "notify",
        "        return None\n",
        "        return self._last\n",
    )
