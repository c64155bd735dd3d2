"""No bucket is stepped until the reductions of all of them are over."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-031",)


def plant() -> None:
    edit(
        OverlapSession, "_advance",
        "    for flight in due_flights:\n        self._step_and_send(",
        "    for flight in due_flights:\n        self._reduce(ddp, flight, watch)\n"
        "    for flight in due_flights:\n        self._step_and_send(",
    )
