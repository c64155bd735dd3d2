"""Join([optimizer, model]): joined ranks answer the model's collectives with the count of ranks."""

# shows: JOIN-040 test_an_optimizer_*

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model.module.weight.data.zero_()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)
    with Join([optimizer, model]):
        for _ in range(INPUTS[rank]):
            optimizer.zero_grad()
            model(torch.full((1, 1), 2.0)).sum().backward()
            optimizer.step()
    return model.module.weight.item()


# In one process each step subtracts the mean gradient, to which a rank without inputs adds zero.
judge(train, "the order of the list is refused, or trains as one process does", -2.0 * sum(INPUTS) / 2)
