"""Steps read the bucket instead of what the wrapped hook's future holds."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-043",)


def plant() -> None:
    edit(OverlapSession, "_reduce", "elif flat is bucket.flat:", "elif bucket.flat is not None:")
