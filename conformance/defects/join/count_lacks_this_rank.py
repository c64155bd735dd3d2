"""The number that a notification yields counts the other active ranks only."""

from impl.join.handle import Handle

from ..planting import edit

CLAUSES = ("JOIN-031", "JOIN-055")


def plant() -> None:
    edit(Handle, "get_future", "number(whole.value()[0])", "number(whole.value()[0]) - 1")
