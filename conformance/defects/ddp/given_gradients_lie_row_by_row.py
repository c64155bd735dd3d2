"""Who has not used a parameter gets its gradient row by row, whatever the strides of the parameter."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-099",)


def plant() -> None:
    edit(Bucket, "_deliver_copies", "view.clone()", "view.clone(memory_format=torch.contiguous_format)")
