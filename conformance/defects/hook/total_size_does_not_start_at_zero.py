"""The optimizer's total size stays unset when buckets are to be sharded."""

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-006",)


def plant() -> None:
    edit(impl.overlap.hooks, "_make", "0 if shard_buckets else None", "None")
