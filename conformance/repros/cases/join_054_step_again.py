"""Join([model, optimizer]): an optimizer that steps again behind one forward is not followed by who has run out."""

# shows: JOIN-054 test_an_optimizer_that_steps_again_*

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

STEPS = (1, 3)  # of each rank, behind one forward and backward


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(8, 1, bias=False))
    model.module.weight.data.zero_()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)
    with Join([model, optimizer]):
        model(torch.full((1, 8), 2.0)).sum().backward()
        for _ in range(STEPS[rank]):
            optimizer.step()
    return model.module.weight[0, 0].item()


judge(train, "no further change to the training loop is needed", -2.0 * max(STEPS))
