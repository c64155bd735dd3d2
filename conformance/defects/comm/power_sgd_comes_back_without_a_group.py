"""A loaded state has no process group."""

from impl.ddp.hooks.powersgd_state import PowerSGDState

from ..planting import edit

CLAUSES = ("COMM-027",)


def plant() -> None:
    edit(PowerSGDState, "__setstate__", "self.process_group = dist.group.WORLD", "self.process_group = None")
