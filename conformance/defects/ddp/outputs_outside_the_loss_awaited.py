"""With detection on, parameters behind outputs that are not in the loss are waited for in vain."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDP-101",)


def plant() -> None:
    edit(Reducer, "_complete", "elif self.find_unused:", "elif self.find_unused and not self._order:")
