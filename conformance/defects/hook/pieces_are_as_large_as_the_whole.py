"""The limit of a piece is the total of all buckets, without dividing it by the number of ranks."""

import impl.overlap.plan

from ..planting import edit

CLAUSES = ("HOOK-039",)
WORLDS = (3,)


def plant() -> None:
    edit(impl.overlap.plan, "sharded_buckets", "limit = sum(sizes) / world", "limit = sum(sizes)")
