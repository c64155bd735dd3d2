"""Compression starts one iteration before it was asked to."""

from impl.ddp.hooks import powerSGD_hook

from ..planting import edit

CLAUSES = ("COMM-026",)


def plant() -> None:
    edit(
        powerSGD_hook,
        "powerSGD_hook",
        "state.iter < state.start_powerSGD_iter",
        "state.iter + 1 < state.start_powerSGD_iter",
    )
