"""Gradients that were equal on one rank share memory there, and one average is written over the other."""

# shows: DDP-049 test_gradients_that_lie_in_one_memory_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Sum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))

    def forward(self, twice):
        second = self.second[None]
        return self.first[None] + (2 * second if twice else second)


def train(rank):
    model = DistributedDataParallel(Sum())
    model(twice=rank == 1).sum().backward()
    return model.module.first.grad[0].item()


judge(train, "the first parameter has the mean of the ranks' gradients", 1.0)
