"""After a Join context the buffers come from the highest rank instead of rank 0."""

# shows: DDPJ-027 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1))
    model = DistributedDataParallel(layers)
    with Join([model]):
        model(torch.ones(2, 1)).sum().backward()
    layers[1].num_batches_tracked.fill_(100 * (rank + 1))
    model(torch.ones(2, 1)).sum().backward()  # begins with the buffers of rank 0, and counts one batch more
    return layers[1].num_batches_tracked.item()


judge(train, "outside of a context every forward begins with the buffers of rank 0", 101)
