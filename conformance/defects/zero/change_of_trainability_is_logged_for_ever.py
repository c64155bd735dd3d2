"""Once requires_grad has changed, every later step says so again."""

from impl.zero.sending import Sending

from ..planting import edit

CLAUSES = ("ZERO-013",)


def plant() -> None:
    edit(
        Sending, "_look_at_trainability",
        "    self._trainable = now\n",
        "    self._trainable = self._trainable or now\n",
    )
