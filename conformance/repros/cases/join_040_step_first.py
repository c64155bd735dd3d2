"""Join([model, optimizer]) around a loop that begins with the step: it meets the count of ranks that have joined."""

# shows: JOIN-040 test_a_loop_that_begins_with_the_step_*

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (1, 2)  # how many batches each rank has


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model.module.weight.data.zero_()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)
    with Join([model, optimizer]):
        for _ in range(INPUTS[rank]):
            optimizer.step()  # with the gradients of the iteration before
            optimizer.zero_grad()
            model(torch.full((1, 1), 2.0)).sum().backward()
    return model.module.weight.item()


# In one process the second step subtracts the mean gradient of the first iteration.
judge(train, "no further change to the training loop is needed", -2.0)
