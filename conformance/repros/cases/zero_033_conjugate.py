"""A complex parameter that is the conjugate of what lies in its memory cannot be sent."""

# shows: ZERO-033 test_parameters_that_are_conjugates_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1, dtype=torch.complex64).conj()) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    for weight in weights:
        weight.grad = torch.full((1,), 1 + 2j)
    optimizer.step()
    return str([weight.item() for weight in weights])


judge(train, "the step of SGD", "[(-1-2j), (-1-2j)]")
