"""The optimizer says that it is initialised, but keeps no note of the buckets that it was initialised with."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-013", "HOOK-015")


def plant() -> None:
    edit(OverlapSession, "_lay_out", "[list(bucket.parameters) for bucket in buckets]", "[]")
