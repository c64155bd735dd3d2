"""The interleaved hook steps each bucket when the next one comes, and so never the last one."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-018", "HOOK-020")


def plant() -> None:
    edit(OverlapSession, "_advance", "elif not last:", "else:")
