"""In throwing mode the first notification does not ask who has run out: surely everybody has one input."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-046",)


def plant() -> None:
    edit(
        PlainPassage, "notify",
        "        if exhausted:\n",
        "        first, self._asked = not hasattr(self, '_asked'), True\n"
        "        if exhausted and not first:\n",
    )
