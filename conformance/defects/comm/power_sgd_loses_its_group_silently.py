"""Saving a state without its group is not mentioned."""

from impl.ddp.hooks.powersgd_state import PowerSGDState

from ..planting import edit

CLAUSES = ("COMM-027",)


def plant() -> None:
    edit(PowerSGDState, "__getstate__", 'logger.warning("PowerSGDState', 'logger.debug("PowerSGDState')
