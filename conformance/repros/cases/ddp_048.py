"""A model with buffers cannot be evaluated on one rank alone: the rank waits for the others to send buffers."""

# shows: DDP-048 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)))
    model(torch.ones(2, 1)).sum().backward()
    model.eval()
    if rank == 0:
        with model.no_sync(), torch.no_grad():
            for _ in range(2):
                model(torch.ones(1, 1))
    return "ended"


judge(train, "a forward without gradients needs no other rank", "ended")
