"""A message that tells of several iterations of a lonely rank counts as one."""

from impl.join.session import Session

from ..planting import edit

CLAUSES = ("JOIN-035",)


def plant() -> None:
    edit(Session, "_count", "+= reading.iterations", "+= 1")
