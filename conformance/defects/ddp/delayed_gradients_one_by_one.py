"""Each delayed gradient travels by itself instead of all in one piece."""

from impl.ddp.delayed import DelayedReduction

from ..planting import edit

CLAUSES = ("DDP-122",)


def plant() -> None:
    edit(DelayedReduction, "_reduce", "self._start(self._flats)", "self._start(list(self._views.values()))")
