"""The first iteration of a static graph is over when the first backward inside of backward is."""

from impl.ddp.reducer import Reducer

from ..planting import swap

CLAUSES = ("DDP-110", "DDP-111")


def plant() -> None:
    def arrived(self: Reducer, index: int) -> None:
        right(self, index)
        if self.use.learning:
            self._arm()

    right = swap(Reducer, "arrived", arrived)
