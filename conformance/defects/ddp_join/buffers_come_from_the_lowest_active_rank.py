"""Inside a context buffers come from the lowest rank that is still active."""

from impl.join.attendance import Attendance

from ..planting import edit

CLAUSES = ("DDPJ-024",)


def plant() -> None:
    edit(Attendance, "source", "ranks[-1]", "ranks[0]")
