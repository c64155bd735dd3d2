"""Owners stay those of the buckets that were expected, even though DDP has settled on others."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-038",)


def plant() -> None:
    edit(OverlapSession, "_follow_the_layout", "            self._settle_owners(ddp)\n", "            pass\n")
