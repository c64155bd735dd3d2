"""A delayed parameter that is the trigger itself keeps its local gradient: the reduction starts before it is there."""

# shows: DDP-122 test_delayed_gradients_are_averages_while_all_others_*

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    for layer in layers:
        torch.nn.init.constant_(layer.weight, 1.0)
    model = DistributedDataParallel(
        layers,
        delay_all_reduce_named_params=[("1.weight", layers[1].weight)],
        param_to_hook_all_reduce=layers[1].weight,
    )
    model(torch.full((1, 1), 1.0 + rank)).sum().backward()
    time.sleep(0.5)  # nobody waits for it
    return layers[1].weight.grad.item()


judge(train, "the gradient of a delayed parameter is the average", 1.5)
