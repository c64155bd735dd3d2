"""The dense gradient of a sparse table is made sparse element by element, not row by row."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-056",)


def plant() -> None:
    edit(Bucket, "_sparse_gradient", "to_sparse(1)", "to_sparse()")
