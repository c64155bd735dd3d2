"""In half precision the sum is made before the division, and overflows."""

from impl.ddp.hooks import reduction

from ..planting import swap

CLAUSES = ("COMM-020",)


def plant() -> None:
    swap(reduction, "_divides_first", lambda tensor: False)
