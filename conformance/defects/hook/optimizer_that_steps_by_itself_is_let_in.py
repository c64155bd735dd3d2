"""A factory does not ask whether the optimizer was built for overlap, and fails on an assertion of its own."""

import impl.overlap.hooks

from ..planting import edit

CLAUSES = ("HOOK-003", "HOOK-005")


def plant() -> None:
    edit(impl.overlap.hooks, "_check", "if zero._overlap_info is None:", "if zero._team is None:")
