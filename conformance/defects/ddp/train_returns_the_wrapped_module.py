"""train() returns the wrapped module, so that a chain of calls loses DDP."""

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-039",)


def plant() -> None:
    swap(DistributedDataParallel, "train", lambda self, mode=True: self.module.train(mode))
