"""A bucket that needs more pieces than there are ranks fails."""

import impl.overlap.plan

from ..planting import edit

CLAUSES = ("HOOK-040",)


def plant() -> None:
    edit(impl.overlap.plan, "sharded_buckets", "min(free or range(world), ", "min(free, ")
