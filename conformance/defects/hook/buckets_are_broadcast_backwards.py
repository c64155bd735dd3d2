"""In the contiguous variant the buckets are stepped and sent from the last to the first."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-026", "HOOK-027", "HOOK-030")


def plant() -> None:
    edit(
        OverlapSession, "_advance",
        "    for flight in due_flights:\n        self._step_and_send(",
        "    for flight in reversed(due_flights):\n        self._step_and_send(",
    )
