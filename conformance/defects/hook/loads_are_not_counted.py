"""Pieces go to the lowest free rank, whatever it owns already."""

import impl.overlap.plan

from ..planting import edit

CLAUSES = ("HOOK-039",)
WORLDS = (3,)


def plant() -> None:
    edit(impl.overlap.plan, "sharded_buckets", "key=lambda rank: (loads[rank], rank)", "key=lambda rank: rank")
