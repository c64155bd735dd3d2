"""A gradient that comes before those of the outputs, in the same backward, is not counted."""

from impl.ddp.reducer import Reducer

from ..planting import edit

CLAUSES = ("DDP-049",)


def plant() -> None:
    edit(Reducer, "begin", "self.forwards.came_early(backward)", "()")
