"""In overlap mode nobody notices a change of requires_grad."""

from impl.zero.sending import Sending

from ..planting import swap

CLAUSES = ("ZERO-027",)


def plant() -> None:
    swap(Sending, "_check_trainability_unchanged", lambda self: None)
