"""Parameters of different shape are refused on the other ranks only: rank 0 waits until the group times out."""

# shows: DDP-029 test_a_differing_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    try:
        DistributedDataParallel(torch.nn.Linear(1, 1 + rank))
    except (RuntimeError, ValueError) as error:
        return "refused" if "param" in str(error) else str(error)
    return "accepted"


judge(train, "all ranks must have the same parameters, which DDP verifies", "refused")
