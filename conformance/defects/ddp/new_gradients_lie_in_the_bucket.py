"""A parameter that this rank did not use is given a view of the bucket, which the next iteration fills anew."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-099",)


def plant() -> None:
    edit(Bucket, "_deliver_copies", "parameter.grad = view.clone()", "parameter.grad = view")
