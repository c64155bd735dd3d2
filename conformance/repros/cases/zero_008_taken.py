"""A sharded optimizer goes on stepping a parameter that has been taken out of its group, and never one put in."""

# shows: ZERO-008 test_parameters_that_come_and_go_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    first, second, third = weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = ZeroRedundancyOptimizer([first, second], torch.optim.SGD, lr=1.0)
    for iteration in range(2):
        if iteration == 1:
            optimizer.param_groups[0]["params"][:] = [second, third]
        for weight in weights:
            weight.grad = torch.ones(1)
        optimizer.step()
    return f"weights {[weight.item() for weight in weights]}"


judge(train, "those in the group are stepped, as by SGD", "weights [-1.0, -2.0, -1.0]")
