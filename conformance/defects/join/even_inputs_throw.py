"""In throwing mode a rank raises when it runs out, even though all others have run out as well."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-044",)


def plant() -> None:
    edit(
        PlainPassage, "shadow",
        "    return shadowed == 0\n",
        "    if self.throw:\n        self._raise_exhausted_here()\n    return shadowed == 0\n",
    )
