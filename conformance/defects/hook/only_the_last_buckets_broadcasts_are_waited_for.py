"""Only the broadcasts of the last bucket are waited for."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-019",)


def plant() -> None:
    edit(OverlapSession, "_end", "for flight in self._flights:", "for flight in self._flights[-1:]:")
