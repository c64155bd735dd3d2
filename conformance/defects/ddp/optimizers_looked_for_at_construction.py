"""Optimizers that are attached after wrapping are not noticed."""

from impl.ddp import DistributedDataParallel
from impl.ddp.in_backward import OptimizersInBackward

from ..planting import swap

CLAUSES = ("DDP-130",)


def plant() -> None:
    def build(self: DistributedDataParallel) -> None:
        build_right(self)
        self._in_backward, self._lazy_init_ran = OptimizersInBackward.of(self), True

    build_right = swap(DistributedDataParallel, "_build_reducer", build)
