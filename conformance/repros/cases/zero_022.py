"""Join([ddp, zero]) on uneven inputs silently trains other weights than one process does."""

# shows: ZERO-022 *

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    model.load_state_dict({"module.weight": torch.zeros(1, 1), "module.bias": torch.zeros(1)})
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=1.0)
    with Join([model, optimizer]):
        for step in range(INPUTS[rank]):
            optimizer.zero_grad()
            model(torch.tensor([[4.0 + 2 * step]])).sum().backward()
            optimizer.step()
    return [parameter.item() for parameter in model.parameters()]


# In one process each step subtracts the mean gradient, to which a rank without inputs adds zero.
moved = sum(4.0 + 2 * step for inputs in INPUTS for step in range(inputs)) / 2
judge(train, "uneven inputs train as they would in one process", [-moved, -sum(INPUTS) / 2])
