"""A change of requires_grad is noticed, but nobody is told."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-013",)


def plant() -> None:
    edit(Sending, "_look_at_trainability", "logger.warning(", "logger.debug(")
