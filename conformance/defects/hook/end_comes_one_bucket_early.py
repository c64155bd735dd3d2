"""An iteration is taken to be over when all buckets but one have come."""

from impl.overlap.session import OverlapSession

from ..planting import edit

CLAUSES = ("HOOK-036", "HOOK-018")


def plant() -> None:
    edit(
        OverlapSession, "on_bucket",
        "self._advance(ddp, bucket.is_last())",
        "self._advance(ddp, len(self._flights) == max(len(self._layout.parts) - 1, 1))",
    )
