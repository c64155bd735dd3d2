"""The second all-reduce of throwing mode is sent in every context."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-045",)


def plant() -> None:
    edit(
        PlainPassage, "notify",
        "    return self._last\n",
        "    if not self.throw:\n        self._count_exhausted(team, device, 0)\n    return self._last\n",
    )
