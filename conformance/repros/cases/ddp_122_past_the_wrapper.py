"""A backward past the wrapper leaves all gradients local but the delayed ones, which it averages."""

# shows: DDP-122 test_a_backward_past_the_wrapper_*

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    for layer in layers:
        torch.nn.init.ones_(layer.weight)
    first, last = (layer.weight for layer in layers)
    DistributedDataParallel(layers, delay_all_reduce_named_params=[("1.weight", last)], param_to_hook_all_reduce=first)
    layers(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()  # nobody has called the wrapper
    time.sleep(1)
    local = 4.0 * (rank + 1)
    return "local" if [first.grad.item(), last.grad.item()] == [local, local] else f"{first.grad} and {last.grad}"


judge(train, "what goes past the wrapper is not synchronised", "local")
