"""LBFGS, which makes one step of all parameters together, is sharded without a word, and steps otherwise."""

# shows: ZERO-008 test_an_optimizer_that_steps_all_parameters_together_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.full((1,), 1.0 + place)) for place in range(2)]
    try:
        optimizer = ZeroRedundancyOptimizer(weights, torch.optim.LBFGS, lr=0.5, max_iter=2)
    except ValueError:
        return "right"
    optimizer.step(lambda: stepped_from(weights))
    alone = [torch.nn.Parameter(torch.full((1,), 1.0 + place)) for place in range(2)]
    torch.optim.LBFGS(alone, lr=0.5, max_iter=2).step(lambda: stepped_from(alone))
    return "right" if all(map(torch.allclose, weights, alone)) else f"{[weight.item() for weight in weights]}"


def stepped_from(weights):
    for weight in weights:
        weight.grad = None
    loss = (weights[0] ** 2 + weights[1] ** 2).sum() ** 2
    loss.backward()
    return loss


judge(train, "the step of LBFGS, or a ValueError", "right")
