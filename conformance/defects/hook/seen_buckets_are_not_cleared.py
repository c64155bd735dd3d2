"""The buckets seen in one iteration still count as seen in the next."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-037", "HOOK-018")


def plant() -> None:
    edit(OverlapSession, "_end", "    self._flights, self._completed = [], 0", "    self._flights = []")
    edit(OverlapSession, "on_bucket", "self._flights, self._completed = [], 0", "self._flights = []")
