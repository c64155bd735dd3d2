"""A joined rank shadows the reductions of every iteration, even of those under no_sync."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("DDPJ-028", "JOIN-054")


def plant() -> None:
    edit(
        Session, "shadow",
        "        if reading.act is not None:\n            self._follow(reading.act)\n",
        "        if reading.begins is not None:\n"
        '            self._follow(Act(reading.begins, self._layout.acts[reading.begins].index("BUCKETS")))\n',
    )
