"""Each rank steps and sends its own buckets before it takes part in those of the others."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-027",)


def plant() -> None:
    edit(
        OverlapSession, "_advance",
        "    for flight in due_flights:\n        self._step_and_send(",
        "    for flight in sorted(due_flights, key=lambda flight: not flight.part.own):\n        self._step_and_send(",
    )
