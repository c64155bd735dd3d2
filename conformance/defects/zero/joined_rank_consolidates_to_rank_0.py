"""A joined rank sends its states to rank 0, wherever the live ranks want them."""

from impl.zero.joining import Joining

from ..planting import edit

CLAUSES = ("ZERO-020",)


def plant() -> None:
    edit(Joining, "consolidate", "target is None:", "to is None:\n        target = 0\n    if target is None:")
