"""The source of a broadcast is given to torch as a group rank, which takes it for a global one."""

from impl.comm.ranks import Team

from ..planting import swap

CLAUSES = ("DDP-025", "DDP-080")
WORLDS = (3,)


def plant() -> None:
    swap(Team, "global_rank", lambda self, rank: rank)
