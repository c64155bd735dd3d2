"""The optimizer is not told that buckets are to be sharded."""

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-006", "HOOK-039")
WORLDS = (2, 3)


def plant() -> None:
    edit(impl.overlap.hooks, "_make", "    info.shard_buckets = shard_buckets\n", "")
