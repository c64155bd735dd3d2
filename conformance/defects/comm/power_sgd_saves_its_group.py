"""The state keeps its process group when it is saved."""

from impl.ddp.hooks.powersgd_state import PowerSGDState

from ..planting import edit

CLAUSES = ("COMM-027",)


def plant() -> None:
    edit(PowerSGDState, "__getstate__", ' if slot != "process_group"', "")
