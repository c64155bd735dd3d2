"""Without a process group the constructor fails with an AssertionError."""

from impl.comm.ranks import Team

from ..planting import edit

CLAUSES = ("DDP-001",)


def plant() -> None:
    edit(Team, "of", 'ValueError("There is no', 'AssertionError("There is no')
