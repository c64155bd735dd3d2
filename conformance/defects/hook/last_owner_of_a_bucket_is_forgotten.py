"""The last owner of each bucket is left out, so some parameters are neither stepped nor sent."""

from impl.overlap.plan import BucketLayout

from ..planting import edit

CLAUSES = ("HOOK-025", "HOOK-028", "HOOK-018")


def plant() -> None:
    edit(
        BucketLayout, "pieces",
        "for owner in sorted(places))",
        "for owner in sorted(places)[: max(len(places) - 1, bucket % 2)])",
    )
