"""A rank that was alone in one context leaves the others out of a reduction that it owes them in the next."""

from impl.ddp.bucket_queue import BucketQueue

from ..planting import edit

CLAUSES = ("JOIN-054",)


def plant() -> None:
    edit(BucketQueue, "start_full", "self.alone = self", "self.was_alone = self.alone = self")
    edit(
        BucketQueue, "shadow_next",
        "last=self.is_last(bucket))",
        "last=self.is_last(bucket), alone=getattr(self, 'was_alone', False))",
    )
