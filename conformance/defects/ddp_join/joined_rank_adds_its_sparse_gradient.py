"""A joined rank contributes its last sparse gradient; only the dense ones are zeroed."""

from impl.ddp.bucket import Bucket

from ..planting import edit

CLAUSES = ("DDPJ-009",)


def plant() -> None:
    edit(Bucket, "zeros", "self._no_rows()", "self._sparse_gradient()")
