"""A joined rank shadows a backward for every forward of the live ranks, evaluations included."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-054", "DDPJ-038")


def plant() -> None:
    edit(
        Session, "shadow",
        "        if reading.act is not None:\n            self._follow(reading.act)\n",
        "        if reading.begins is not None:\n"
        '            self._follow(Act(reading.begins, self._layout.acts[reading.begins].index("BUCKETS")))\n',
    )
