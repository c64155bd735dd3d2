"""After unpickling, delayed parameters are not averaged: each rank trains on with gradients of its own."""

# shows: DDP-158 *

import copy
import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    for layer in layers:
        layer.weight.data.fill_(1.0)
    delayed = {"delay_all_reduce_named_params": [("1.weight", layers[1].weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **delayed)
    model = copy.deepcopy(model)  # by __getstate__ and __setstate__, as pickle does
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    time.sleep(1)  # for a delayed reduction, which nobody waits for
    return [layer.weight.grad.item() for layer in model.module]


# one process: the mean of 4 and 8
judge(train, "a restored model trains as before", [6.0, 6.0])
