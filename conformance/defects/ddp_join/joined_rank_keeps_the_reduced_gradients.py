"""A joined rank takes the reduced gradients into its own .grad."""

from impl.ddp.bucket_queue import BucketQueue

from ..planting import edit

CLAUSES = ("DDPJ-010",)
WORLDS = (3,)  # a rank that is alone reduces nothing: two must be left


def plant() -> None:
    edit(
        BucketQueue, "shadow_results",
        "self._traffic.result(bucket, flight)",
        "bucket.deliver(*(self._traffic.result(bucket, flight)[:1]), ())",
    )
