"""requires_grad is looked at when the optimizer is built, and never again."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-013",)


def plant() -> None:
    edit(Sending, "_look_at_trainability", "if now == self._trainable:", "if self._trainable:")
