"""Casting the model watches its gradients again although the hooks were removed."""

from impl.ddp.readiness import Readiness

from ..planting import edit

CLAUSES = ("DDP-066",)


def plant() -> None:
    edit(Readiness, "watch_anew", "if not self._arrivals.watching:\n        return\n    if", "if")
