"""Once a context has asked to divide by the active ranks, all later contexts do."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-012", "DDPJ-034")


def plant() -> None:
    edit(
        _DDPJoinHook, "__init__",
        "_world_size = divide_by_initial_world_size",
        "_world_size &= divide_by_initial_world_size",
    )
