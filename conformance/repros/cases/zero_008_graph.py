"""Where a step has changed what a graph has saved, ranks that were sent it go back through the graph silently."""

# shows: ZERO-008 test_a_graph_that_has_saved_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    losses = [(weight * weight).sum() for weight in weights]
    for weight in weights:
        weight.grad = torch.ones(1)
    optimizer.step()
    refused = 0
    for loss in losses:
        try:
            loss.backward()
        except RuntimeError:
            refused += 1
    return f"{refused} refused"


judge(train, "backward through both is an error, as with SGD", "2 refused")
