"""In a subgroup the sum is divided by the size of the world."""

import torch.distributed as dist

from impl.ddp.uneven import UnevenInputs

from ..planting import swap

CLAUSES = ("DDP-051",)
WORLDS = (3,)


def plant() -> None:
    swap(UnevenInputs, "_divisor", lambda self: dist.get_world_size())
    swap(UnevenInputs, "_known_divisor", lambda self: dist.get_world_size())
