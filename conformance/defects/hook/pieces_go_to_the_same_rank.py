"""A rank that has a piece of a bucket may get the next one too."""

import impl.overlap.plan

from ..planting import edit

CLAUSES = ("HOOK-039",)
WORLDS = (3,)


def plant() -> None:
    edit(impl.overlap.plan, "sharded_buckets", "        free.discard(owner)\n", "        pass\n")
