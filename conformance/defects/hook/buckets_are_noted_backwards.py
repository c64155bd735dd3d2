"""The buckets are noted in the reverse of their order."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-015",)


def plant() -> None:
    edit(OverlapSession, "_lay_out", "for bucket in buckets]\n", "for bucket in reversed(buckets)]\n")
