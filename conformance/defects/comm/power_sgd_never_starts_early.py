"""An early start is refused even where nothing is remembered."""

from impl.ddp.hooks.powersgd_state import PowerSGDState

from ..planting import edit

CLAUSES = ("COMM-025",)


def plant() -> None:
    edit(PowerSGDState, "__init__", "(use_error_feedback or warm_start) and start", "start")
