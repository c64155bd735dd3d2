"""A learning rate that a closure sets has no effect on a sharded optimizer, and is taken back."""

# shows: ZERO-011 test_a_rate_that_a_closure_sets_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)

    def closure():
        for weight in weights:
            weight.grad = torch.ones(1)
        optimizer.param_groups[0]["lr"] = 0.25

    optimizer.step(closure)
    return f"weights {[weight.item() for weight in weights]}, rate {optimizer.param_groups[0]['lr']}"


judge(train, "weights and rate are those of SGD", "weights [-0.25, -0.25], rate 0.25")
