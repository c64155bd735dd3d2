"""Sharding begins with the largest bucket."""

import impl.overlap.plan

from ..planting import edit

CLAUSES = ("HOOK-039",)
WORLDS = (3,)


def plant() -> None:
    edit(impl.overlap.plan, "sharded_buckets", "key=lambda k: sizes[k]", "key=lambda k: -sizes[k]")
