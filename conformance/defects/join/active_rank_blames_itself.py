"""An active rank reports the exhaustion of another rank as its own."""

from impl.join.passage import Passage

from ..planting import swap

CLAUSES = ("JOIN-042",)


def plant() -> None:
    swap(Passage, "_raise_exhausted_elsewhere", lambda self, count: self._raise_exhausted_here())
