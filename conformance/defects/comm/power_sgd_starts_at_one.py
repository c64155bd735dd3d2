"""Compression with memory may start at iteration 1."""

from impl.ddp.hooks.powersgd_state import PowerSGDState

from ..planting import edit

CLAUSES = ("COMM-025",)


def plant() -> None:
    edit(PowerSGDState, "__init__", "start_powerSGD_iter <= 1", "start_powerSGD_iter < 1")
