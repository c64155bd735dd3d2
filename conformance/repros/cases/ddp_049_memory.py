"""Gradients that were equal on one rank share memory there, and one average is written over the other."""

# shows: DDP-049 test_gradients_that_lie_in_one_memory_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))

    def forward(self, factor, twice):
        second = self.second[None]
        return factor * (self.first[None] + (2 * second if twice else second))


def train(rank):
    model = DistributedDataParallel(Sum())
    model(torch.full((1, 2), 2.0), twice=rank == 1).sum().backward()
    return [parameter.grad[0].item() for parameter in model.parameters()]


judge(train, "each parameter has the mean of the ranks' gradients", [2.0, 3.0])
