"""Backward returns while the owners' parameters are still on their way."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-019", "HOOK-029")


def plant() -> None:
    edit(OverlapSession, "_end", "            transfer.finish(watch)\n", "            pass\n")
