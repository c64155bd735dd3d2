"""The source of buffers is the highest rank that was active in the iteration before."""

from impl.join.attendance import Attendance

from ..planting import edit

CLAUSES = ("DDPJ-024",)


def plant() -> None:
    edit(Attendance, "source", "self._current().ranks[-1]", "self._last.ranks[-1]")
