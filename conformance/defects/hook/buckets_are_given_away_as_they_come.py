"""Sharded buckets are given to ranks in their own order, not the smallest first."""

from impl.overlap import plan

from ..planting import edit

CLAUSES = ("HOOK-039",)


def plant() -> None:
    edit(plan, "sharded_buckets", "sorted(range(len(owned)), key=lambda k: sizes[k])", "range(len(owned))")
