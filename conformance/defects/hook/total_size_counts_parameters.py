"""The total size is the number of parameters, not of their elements."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-015",)


def plant() -> None:
    edit(OverlapSession, "_lay_out", "sum(bucket.spec.numel for", "sum(len(bucket.parameters) for")
