"""A sparse parameter that nobody uses gets a gradient without rows instead of none."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-100",)


def plant() -> None:
    edit(Bucket, "deliver", "if self.spec.slots[0].parameter not in untouched:", "if True:")
