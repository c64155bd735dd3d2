"""In overlap mode the state is not refused before the first backward: it fails with an AttributeError."""

from impl.zero.sharded import Sharded

from ..planting import swap

CLAUSES = ("ZERO-024",)


def plant() -> None:
    swap(Sharded, "_check_overlap_initialized", lambda self: None)
