"""A static graph that has trained is copied or pickled: the copy trains on with gradients of each rank's own."""

# shows: DDP-159 *

import copy

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    model = DistributedDataParallel(model, static_graph=True)
    seen = []
    for iteration in range(5):
        if iteration == 2:
            model = copy.deepcopy(model)  # by __getstate__ and __setstate__, as pickle does
        model.zero_grad()
        model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
        seen.append(model.module.weight.grad.item())
    return seen


# one process: the mean of 4 and 8
judge(train, "a restored model trains as before", [6.0] * 5)
