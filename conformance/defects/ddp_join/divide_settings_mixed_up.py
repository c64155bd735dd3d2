"""The divide setting is taken the wrong way round."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-007", "DDPJ-008")


def plant() -> None:
    edit(
        _DDPJoinHook, "__init__",
        "_world_size = divide_by_initial_world_size",
        "_world_size = not divide_by_initial_world_size",
    )
