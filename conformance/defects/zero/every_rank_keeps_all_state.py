"""The local optimizer is built over all parameters, so every rank keeps the whole state."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-009",)


def plant() -> None:
    edit(Sharded, "_local_group", " if owner == rank]", " if owner >= 0]")
