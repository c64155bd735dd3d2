"""The buckets and futures of an iteration are kept, and never cleared."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-037",)


def plant() -> None:
    edit(
        OverlapSession, "_end",
        "    self._flights, self._completed = [], 0",
        '    self._seen = [*getattr(self, "_seen", ()), *self._flights]\n    self._flights, self._completed = [], 0',
    )
