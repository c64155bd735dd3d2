"""An optimizer that calls its closure again sees only its own shard stepped: other weights than on one process."""

# shows: ZERO-008 test_a_closure_that_is_called_again_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


class Twice(torch.optim.SGD):
    def step(self, closure=None):
        for _ in range(2):
            closure()
            super().step()


def train(rank):
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, Twice, lr=0.25)

    def closure():
        total = sum(weight.item() for weight in weights)
        for weight in weights:
            weight.grad = torch.full((1,), total)

    optimizer.step(closure)
    return f"weights {[weight.item() for weight in weights]}"


judge(train, "weights are those of Twice on one process", "weights [0.25, 0.25]")
