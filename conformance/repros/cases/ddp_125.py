"""A delayed gradient that comes after the trigger's is not averaged, without a word."""

# shows: DDP-125 *

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(3)])
    for layer in layers:
        layer.weight.data.fill_(1.0)
    delayed = {"delay_all_reduce_named_params": [("0.weight", layers[0].weight)]}  # its gradient comes last
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[2].weight, **delayed)
    try:
        model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    except RuntimeError as error:
        return "refused" if "0.weight" in str(error) else str(error)
    time.sleep(1)  # for a reduction that may still be on its way
    return layers[0].weight.grad.item()


# one process: the mean of 4 and 8
judge(train, "gradients are averaged, or misuse is an error", 6.0, "refused")
