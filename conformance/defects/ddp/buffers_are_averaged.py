"""Buffers are averaged over the ranks instead of following rank 0."""

from typing import Any

import torch.distributed as dist

from impl.ddp import DistributedDataParallel

from ..planting import swap

CLAUSES = ("DDP-080", "DDP-087")


def plant() -> None:
    def average(self: DistributedDataParallel, source: Any) -> None:
        for buffer in self.modules_buffers:
            mean = buffer.double()
            dist.all_reduce(mean, group=self.process_group)
            buffer.copy_(mean / self.reducer.team.size)

    swap(DistributedDataParallel, "_broadcast_buffers", average)
