"""join() does not pass its divide setting on to the hook."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-003", "DDPJ-008")


def plant() -> None:
    edit(
        UnevenInputs, "join",
        "throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size",
        "throw_on_early_termination",
    )
