"""The first ten iterations are not sampled one by one."""

from impl.ddp import log

from ..planting import swap

CLAUSES = ("DDP-143",)


def plant() -> None:
    swap(log, "_EARLY_ITERATIONS", 0)
