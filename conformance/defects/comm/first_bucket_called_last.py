"""The first bucket says that it is the last one."""

from impl.ddp.bucket_queue import BucketQueue

from ..planting import swap

CLAUSES = ("COMM-016", "COMM-026", "COMM-028")


def plant() -> None:
    swap(BucketQueue, "is_last", lambda self, bucket: bucket is self.buckets[0])
