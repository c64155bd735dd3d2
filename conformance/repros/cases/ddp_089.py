"""The training step after an evaluation runs with buffers of its own on each rank."""

# shows: DDP-089 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    model = DistributedDataParallel(layers)
    model(torch.ones(2, 1)).sum().backward()
    with torch.no_grad():
        model(torch.ones(2, 1))
    layers[1].num_batches_tracked.fill_(100 * (rank + 1))
    model(torch.ones(2, 1)).sum().backward()  # begins with the buffers of rank 0, and counts one batch more
    return layers[1].num_batches_tracked.item()


judge(train, "every training forward begins with the buffers of rank 0", 101)
