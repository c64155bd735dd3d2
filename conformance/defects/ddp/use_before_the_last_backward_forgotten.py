"""A parameter that was used only inside no_sync counts as unused in the closing reduction."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-077",)


def plant() -> None:
    swap(Reducer, "_uses", lambda self, index: index not in self._unused)
    swap(Reducer, "_left_out", lambda self: self._unused)
