"""A gradient that comes before those of the outputs, in the same backward, is not counted."""

from impl.ddp.backwards import Backwards

from ..planting import edit

CLAUSES = ("DDP-049",)


def plant() -> None:
    edit(Backwards, "begin", "self.forwards.came_early(backward)", "()")
