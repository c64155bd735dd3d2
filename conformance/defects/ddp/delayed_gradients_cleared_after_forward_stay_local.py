"""A delayed gradient that is cleared between forward and backward is not taken into the buffer."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-122",)


def plant() -> None:
    edit(DelayedReduction, "_reduce", "self._gather_strays()", "pass")
