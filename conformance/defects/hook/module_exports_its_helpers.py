"""The module of the overlap hooks exports more than its two factories."""

import impl.overlap

from ..planting import swap

CLAUSES = ("HOOK-001",)
WORLDS = (1,)


def plant() -> None:
    swap(impl.overlap, "__all__", ["OverlapSession", "hook_with_zero_step", "hook_with_zero_step_interleaved"])
