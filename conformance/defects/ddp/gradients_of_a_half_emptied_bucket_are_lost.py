"""With bucket views, one gradient that lies in the bucket is taken to mean that all do."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-117",)


def plant() -> None:
    edit(Bucket, "collect", "elif not all(map(is_, gradients, self.", "elif not any(map(is_, gradients, self.")
