"""The number that a notification yields counts the other active ranks only."""

from impl.join.handle import Handle

from ..planting import edit

CLAUSES = ("JOIN-031", "JOIN-055")


def plant() -> None:
    edit(Handle, "get_future", "whole.value()[0][:1]", "whole.value()[0][:1] - 1")
