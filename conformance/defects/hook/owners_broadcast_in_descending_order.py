"""Of a bucket with several owners the highest rank broadcasts first."""

from impl.overlap.plan import BucketLayout

from ..planting import edit

CLAUSES = ("HOOK-026",)
WORLDS = (3,)


def plant() -> None:
    edit(BucketLayout, "pieces", "in sorted(places))", "in sorted(places, reverse=True))")
