"""A state that the program puts in the place of a sharded optimizer's has no effect: momentum does not begin anew."""

# shows: ZERO-008 test_a_state_that_the_program_replaces_*

from collections import defaultdict

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0, momentum=1.0)
    for iteration in range(2):
        if iteration == 1:
            optimizer.state = defaultdict(dict)  # as an ordinary optimizer allows
        for weight in weights:
            weight.grad = torch.ones(1)
        optimizer.step()
    return f"weights {[weight.item() for weight in weights]}"


judge(train, "weights are those of SGD whose momentum begins anew", "weights [-2.0, -2.0]")
