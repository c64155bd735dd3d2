"""The average divides by one rank too many."""

from impl.ddp.uneven import UnevenInputs

from ..planting import swap

CLAUSES = ("DDP-049", "DDP-050")


def plant() -> None:
    right = swap(UnevenInputs, "_divisor", lambda self: right(self) + 1)
    swap(UnevenInputs, "_known_divisor", lambda self: right(self) + 1)
