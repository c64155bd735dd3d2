"""The average of sparse gradients is a dense tensor."""

from impl.comm.sparse import SparseRound
from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDP-057",)


def plant() -> None:
    edit(SparseRound, "_sum", "return total.coalesce()", "return total.to_dense()")
    edit(Bucket, "deliver", "kernels.divide(result.values(), divisor)", "kernels.divide(result, divisor)")
