"""Gradients are divided by the initial world size, whatever is asked for."""

from impl.ddp.join_hook import _DDPJoinHook

from ..planting import edit

CLAUSES = ("DDPJ-008", "DDPJ-011", "DDPJ-012")


def plant() -> None:
    edit(_DDPJoinHook, "__init__", "_world_size = divide_by_initial_world_size", "_world_size = True")
