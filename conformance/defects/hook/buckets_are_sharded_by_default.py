"""The contiguous factory shards buckets unless it is told not to."""

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-002",)


def plant() -> None:
    edit(impl.overlap.hooks, "hook_with_zero_step", "shard_buckets: bool = False", "shard_buckets: bool = True")
