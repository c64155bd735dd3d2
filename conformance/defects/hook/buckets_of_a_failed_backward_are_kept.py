"""Buckets of a backward that failed half-way are stepped with those of the next one."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-037",)


def plant() -> None:
    edit(
        OverlapSession,
        "on_bucket",
        "        self._flights, self._completed = [], 0\n        self._follow",
        "        self._follow",
    )
