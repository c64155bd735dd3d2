"""Gradients are summed over the ranks and not divided."""

from impl.ddp.uneven import UnevenInputs

from ..planting import swap

CLAUSES = ("DDP-049", "DDP-050", "DDP-056", "DDP-059")


def plant() -> None:
    swap(UnevenInputs, "_divisor", lambda self: 1)
    swap(UnevenInputs, "_known_divisor", lambda self: 1)
