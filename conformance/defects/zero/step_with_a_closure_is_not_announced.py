"""In a join context ranks that have joined do not hear of a step that was given a closure."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-022",)


def plant() -> None:
    edit(Joining, "step", "        session.announce(zero, STEP)\n", "")
