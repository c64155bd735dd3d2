"""The average of sparse gradients is a dense tensor."""

from impl.comm import sparse

from ..planting import edit

CLAUSES = ("DDP-057",)


def plant() -> None:
    edit(sparse, "sum_sparse", "return total.coalesce()", "return total.to_dense()")
