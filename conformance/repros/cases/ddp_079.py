"""A static graph whose first backward runs inside no_sync ends in an internal assertion."""

# shows: DDP-079 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), static_graph=True)
    batch = torch.full((1, 1), 2.0 * (rank + 1))
    try:
        with model.no_sync():
            model(batch).sum().backward()
        model(batch).sum().backward()
    except RuntimeError as error:
        return "refused" if "no_sync" in str(error) else str(error).splitlines()[0]
    return model.module.weight.grad.item()


# one process: the mean of 2 and 4, accumulated twice
judge(train, "no_sync accumulates gradients, which the next backward averages", 6.0, "refused")
