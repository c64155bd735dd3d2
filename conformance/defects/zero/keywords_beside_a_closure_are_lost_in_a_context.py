"""Inside a context a step with a closure drops its keywords."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-022",)


def plant() -> None:
    edit(Joining, "step", "zero._local_step(closure=closure, **arguments)", "zero._local_step(closure=closure)")
