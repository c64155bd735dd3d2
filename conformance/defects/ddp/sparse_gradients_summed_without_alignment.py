"""Sparse gradients of other ranks are added to this rank's rows instead of their own."""

from impl.comm import sparse

from ..planting import edit

CLAUSES = ("DDP-057",)


def plant() -> None:
    edit(sparse, "sum_sparse", "all_indices[kept].t()", "indices.repeat(1, team.size)[:, : len(kept)]")
