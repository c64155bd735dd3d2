"""A parameter that is a strided view is sent by its memory: ranks drift apart, and nothing is said."""

# shows: ZERO-033 *

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(8)[::2]) for _ in range(2)]
    zero = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    for weight in weights:
        weight.grad = torch.ones(4)
    zero.step()
    return [weight.tolist() for weight in weights]


judge(train, "the parameters of the ordinary optimizer on every rank", [[-1.0] * 4] * 2)
