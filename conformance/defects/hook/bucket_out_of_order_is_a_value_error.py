"""A bucket that is not due is refused with a ValueError."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-032",)


def plant() -> None:
    edit(OverlapSession, "on_bucket", "raise AssertionError(", "raise ValueError(")
