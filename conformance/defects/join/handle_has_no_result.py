"""The handle of a notification holds its number in the future only."""

from impl.join.handle import Handle

from ..planting import edit

CLAUSES = ("JOIN-031",)


def plant() -> None:
    edit(Handle, "result", "[self._number(self._pending.buffer)]", "[]")
