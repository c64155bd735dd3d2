"""Nobody looks whether buckets come in order."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-032",)


def plant() -> None:
    edit(OverlapSession, "on_bucket", "elif index != len(self._flights):", "elif index < 0:")
