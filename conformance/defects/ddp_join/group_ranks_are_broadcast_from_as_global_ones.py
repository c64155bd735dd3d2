"""Where torch.distributed asks for a global rank, it is given the rank in the group."""

from impl.comm.ranks import Team

from ..planting import swap

CLAUSES = ("DDPJ-022", "ZERO-008", "HOOK-044")
WORLDS = (3,)


def plant() -> None:
    swap(Team, "global_rank", lambda self, rank: rank)
