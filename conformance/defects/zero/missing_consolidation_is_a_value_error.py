"""Asking for the state without a consolidation raises a ValueError."""

from impl.zero.sharded import Sharded

from ..planting import edit

CLAUSES = ("ZERO-015",)


def plant() -> None:
    edit(Sharded, "state_dict", "raise RuntimeError(", "raise ValueError(")
