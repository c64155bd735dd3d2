"""Inside a context buffers come from the group's last rank, joined or not."""

from impl.join.attendance import Attendance

from ..planting import edit

CLAUSES = ("DDPJ-024",)


def plant() -> None:
    edit(Attendance, "source", "return self._current().ranks[-1]", "return GroupRank(self.team.size - 1)")
