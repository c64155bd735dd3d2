"""Nobody waits for the futures that a buffer hook returns."""

from impl.ddp.reduction import Reduction

from ..planting import edit

CLAUSES = ("DDP-095",)


def plant() -> None:
    edit(Reduction, "_results", "future.wait()", "pass")
