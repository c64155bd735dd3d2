"""In half precision the hooks of the library make the sum before the division, and it overflows."""

from impl.ddp.hooks import reduction

from ..planting import edit

CLAUSES = ("COMM-020",)


def plant() -> None:
    edit(reduction, "start_mean", "if divides_first(tensor.dtype):", "if False:")
    edit(reduction, "finish_mean", "if not divides_first(tensor.dtype):", "if True:")
