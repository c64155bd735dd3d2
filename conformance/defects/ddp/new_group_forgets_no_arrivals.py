"""A static graph that is moved to another group goes on noting arrivals as before, and counts none."""

from impl.ddp.readiness import Readiness

from ..planting import edit

CLAUSES = ("DDP-162",)


def plant() -> None:
    edit(Readiness, "forget", "self._arrivals.count_each()", "pass")
