"""A joined rank sends zeros for its first bucket only, and then what its buffers hold."""

from impl.ddp.bucket_queue import BucketQueue

from ..planting import edit

CLAUSES = ("DDPJ-009", "DDPJ-033")


def plant() -> None:
    edit(
        BucketQueue, "shadow_next",
        "bucket.zeros()",
        "bucket.zeros() if bucket.flat is None or not self._shadow_flights else bucket.flat.clone()",
    )
