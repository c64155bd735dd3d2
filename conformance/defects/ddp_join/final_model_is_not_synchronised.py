"""The context ends without a synchronisation: the last averages have made the replicas equal anyway."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import swap

CLAUSES = ("DDPJ-016", "DDPJ-018", "DDPJ-019", "DDPJ-022")
WORLDS = (3,)


def plant() -> None:
    swap(_DDPJoinHook, "post_hook", lambda self, is_last_joiner: None)
