"""join_hook divides by the active ranks unless it is told otherwise."""

from impl.ddp.uneven import UnevenInputs

from ..planting import edit

CLAUSES = ("DDPJ-004",)


def plant() -> None:
    edit(
        UnevenInputs, "join_hook",
        'kwargs.get("divide_by_initial_world_size", True)',
        'kwargs.get("divide_by_initial_world_size")',
    )
