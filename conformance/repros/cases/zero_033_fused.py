"""A fused optimizer over bucket views, given gradients before: it pairs elements of different places, silently."""

# shows: ZERO-033 test_a_fused_optimizer_meets_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(3, 2).t()) for _ in range(2)]  # column by column
    for weight in weights:
        weight.grad = torch.empty_like(weight).copy_(torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    zero = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0, fused=True, parameters_as_bucket_view=True)
    zero.step()
    return [weight.tolist() for weight in weights]


judge(train, "the parameters of the ordinary optimizer on every rank", [[[-1.0] * 3, [0.0] * 3]] * 2)
