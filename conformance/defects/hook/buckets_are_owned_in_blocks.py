"""The first buckets belong to the first rank, the next ones to the second, and so on."""

import impl.overlap.plan

from ..planting import edit

CLAUSES = ("HOOK-038",)


def plant() -> None:
    edit(impl.overlap.plan, "whole_buckets", "place % world", "place * world // len(buckets)")
