"""Bucket 0 belongs to rank 1."""

import impl.overlap.plan

from ..planting import edit

CLAUSES = ("HOOK-038",)


def plant() -> None:
    edit(impl.overlap.plan, "whole_buckets", "place % world", "(place + 1) % world")
