"""A step with a closure does not say that an iteration begins, because the closure may."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(Joining, "step", "session.begin(zero)\n", "pass\n")
