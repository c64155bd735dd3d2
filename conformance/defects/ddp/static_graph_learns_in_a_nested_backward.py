"""The first iteration of a static graph is over when the first backward inside of backward is."""

from impl.ddp.backwards import Backwards

from ..planting import swap

CLAUSES = ("DDP-110", "DDP-111")


def plant() -> None:
    def arrived(self: Backwards, index: int) -> None:
        right(self, index)
        if self.use.learning:
            self._arm()

    right = swap(Backwards, "arrived", arrived)
