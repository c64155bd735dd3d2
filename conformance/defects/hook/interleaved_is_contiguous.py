"""The interleaved factory makes the contiguous hook."""

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-034", "HOOK-048")


def plant() -> None:
    edit(impl.overlap.hooks, "hook_with_zero_step_interleaved", "Schedule.INTERLEAVED", "Schedule.CONTIGUOUS")
