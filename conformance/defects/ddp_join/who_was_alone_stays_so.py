"""A rank that was alone with its inputs in one context reduces alone, too, what it shadows in the next."""

from impl.ddp.bucket_queue import BucketQueue

from ..planting import edit

CLAUSES = ("DDPJ-034",)


def plant() -> None:
    edit(BucketQueue, "shadow_next", "last=self.is_last(bucket))", "last=self.is_last(bucket), alone=self.alone)")
