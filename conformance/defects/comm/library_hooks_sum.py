"""The library's hooks sum and do not divide."""

from impl.ddp.hooks import reduction

from ..planting import swap

CLAUSES = ("COMM-019", "COMM-017", "COMM-020")


def plant() -> None:
    swap(reduction, "divisor_of", lambda team, bucket: 1)
