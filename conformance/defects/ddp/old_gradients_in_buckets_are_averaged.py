"""An old gradient that lives in a bucket is averaged although nobody has used its parameter."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-100",)


def plant() -> None:
    edit(
        Bucket,
        "collect",
        "if unused or any(map(is_, gradients, repeat(None))):",
        "if any(map(is_, gradients, repeat(None))):",
    )
