"""A joined rank contributes the gradients of its last iteration."""

from impl.ddp.bucket_queue import BucketQueue

from ..planting import edit

CLAUSES = ("DDPJ-007", "DDPJ-009", "DDPJ-033")


def plant() -> None:
    edit(
        BucketQueue, "shadow_next",
        "bucket.zeros()",
        "bucket.collect(()).clone() if bucket.flat is not None else bucket.zeros()",
    )
