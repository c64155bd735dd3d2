"""The optimizer names the default group as its join group."""

import torch.distributed as dist

from impl.zero.optimizer import ZeroRedundancyOptimizer

from ..planting import swap

CLAUSES = ("ZERO-019",)
WORLDS = (3,)


def plant() -> None:
    swap(ZeroRedundancyOptimizer, "join_process_group", lambda self: dist.group.WORLD)
