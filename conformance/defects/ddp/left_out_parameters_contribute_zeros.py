"""A rank that does not use a parameter contributes zeros for it, although it holds an average of earlier iterations."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-059", "DDP-099")


def plant() -> None:
    edit(Bucket, "_collect_what_is_there", "if gradient is None:", "if gradient is None or index in unused:")
