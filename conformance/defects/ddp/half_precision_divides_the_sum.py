"""In half precision DDP adds up before it divides, so that sums overflow whose mean does not."""

from impl.comm import averaging

from ..planting import swap

CLAUSES = ("DDP-049", "DDP-122")


def plant() -> None:
    swap(averaging, "divides_first", lambda dtype: False)
