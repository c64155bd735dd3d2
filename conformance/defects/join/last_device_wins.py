"""The context communicates on the last joinable's device."""

from impl.join.context import Join

from ..planting import edit

CLAUSES = ("JOIN-016",)


def plant() -> None:
    edit(Join, "__init__", "device_of(self._joinables[0])", "device_of(self._joinables[-1])")
