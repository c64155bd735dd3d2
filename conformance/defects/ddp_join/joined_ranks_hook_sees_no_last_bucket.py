"""On a joined rank the communication hook is never told that a bucket is the last one."""

from impl.ddp.bucket_queue import BucketQueue

from ..planting import edit

CLAUSES = ("DDPJ-033",)


def plant() -> None:
    edit(BucketQueue, "shadow_next", "last=self.is_last(bucket))", "last=False)")
