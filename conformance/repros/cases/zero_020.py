"""With ZeroRedundancyOptimizer as Join's only joinable, all ranks wait for each other once one has joined."""

# shows: ZERO-020 *

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    for weight in weights:
        weight.grad = torch.ones(1)
    with Join([optimizer]):
        for _ in range(INPUTS[rank]):
            optimizer.step()
    return "ended"


judge(train, "a ZeroRedundancyOptimizer is a Joinable, and all ranks leave the block", "ended")
