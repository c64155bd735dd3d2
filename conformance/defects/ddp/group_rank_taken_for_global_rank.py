"""The source of a broadcast is given to torch as a group rank, which takes it for a global one."""

from impl.comm import collectives

from ..planting import edit

CLAUSES = ("DDP-025", "DDP-080")
WORLDS = (3,)


def plant() -> None:
    edit(collectives, "broadcast", "src=team.global_rank(source)", "src=int(source)")
