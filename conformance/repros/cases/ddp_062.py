"""Penalties on the weights, differentiated one by one before the loss: the gradient of the loss stays local."""

# shows: DDP-062 test_backwards_that_reach_the_weights_one_by_one_*
# shows: DDP-049 test_backwards_that_reach_the_weights_one_by_one_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    model = DistributedDataParallel(layers)
    output = model(torch.full((1, 1), 4.0 * (rank + 1)))
    for layer in layers:
        (2 * layer.weight.sum()).backward()
    output.sum().backward()
    return [layer.weight.grad.item() for layer in layers]


# one process: the mean of 4 and 8, and 2 for the penalty
judge(train, "after backward a gradient is the mean over the ranks, or the iteration is refused", [8.0, 8.0])
