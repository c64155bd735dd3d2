"""In throwing mode a notification looks at the answer of the one before, to save the wait."""

from impl.join.plain import PlainPassage

from ..planting import edit

CLAUSES = ("JOIN-042", "JOIN-045")


def plant() -> None:
    edit(
        PlainPassage, "notify",
        "        exhausted = self._count_exhausted(team, device, 0)\n",
        "        former = getattr(self, '_asked', None)\n"
        '        self._asked = count(team, device, 0, "Join: count of exhausted ranks")\n'
        "        exhausted = int(former.read(self.watch)[0]) if former is not None else 0\n",
    )
