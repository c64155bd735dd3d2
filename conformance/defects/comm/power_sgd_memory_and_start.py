"""An early start is refused only if error feedback and warm start are both on."""

from impl.ddp.hooks.powersgd_state import PowerSGDState

from ..planting import edit

CLAUSES = ("COMM-025",)


def plant() -> None:
    edit(PowerSGDState, "__init__", "(use_error_feedback or warm_start)", "(use_error_feedback and warm_start)")
