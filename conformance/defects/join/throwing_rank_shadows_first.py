"""In throwing mode the rank that has run out runs its main hooks once before it raises."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-043",)


def plant() -> None:
    edit(
        PlainPassage, "shadow",
        "            self._raise_exhausted_here()\n",
        "            for hook in self._hooks:\n                hook.main_hook()\n"
        "            self._raise_exhausted_here()\n",
    )
