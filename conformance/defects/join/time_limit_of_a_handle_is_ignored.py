"""A handle that is given a time limit waits for as long as it takes."""

from impl.join.handle import Handle

from ..planting import edit

CLAUSES = ("JOIN-048",)


def plant() -> None:
    edit(Handle, "wait", "if timeout is not None:", "if False:")
