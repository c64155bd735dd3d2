"""Of a bucket with several owners the last one is left out: its parameters are neither stepped nor sent."""

from impl.overlap.plan import BucketLayout

from ..planting import edit

CLAUSES = ("HOOK-025", "HOOK-028")
WORLDS = (3,)


def plant() -> None:
    edit(BucketLayout, "pieces", "in sorted(places))", "in sorted(places)[:-1] or places)")
