"""After a backward every parameter without a gradient has one of zeros."""

import torch

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-058", "DDP-100", "DDP-105")


def plant() -> None:
    def deliver(self: DistributedDataParallel) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        right(self)

    right = swap(DistributedDataParallel, "_on_delivered", deliver)
