"""A rate that a step has changed before it failed is taken back in the next one."""

# shows: ZERO-011 test_after_a_step_that_failed_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


class Slipping(torch.optim.SGD):
    fails = True

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.5
        if self.fails:
            self.fails = False
            raise LookupError("spilled")
        return super().step(closure)


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, Slipping, lr=1.0)
    for weight in weights:
        weight.grad = torch.ones(1)
    try:
        optimizer.step()
    except LookupError:
        optimizer.step()
    return [weight.item() for weight in weights]


judge(train, "the second step is a quarter, as with the ordinary optimizer", [-0.25, -0.25])
