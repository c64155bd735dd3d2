"""A hook before a load, which may make another dictionary, is called too late."""

# shows: ZERO-017 test_what_a_hook_before_a_load_*

import copy

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    ordinary = torch.optim.SGD(weights, lr=1.0, momentum=0.5)
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0, momentum=0.5)
    for weight in weights:
        weight.grad = torch.ones(1)
    ordinary.step()
    optimizer.register_load_state_dict_pre_hook(lambda _, saved: saved["optimizer"])
    optimizer.load_state_dict({"optimizer": copy.deepcopy(ordinary.state_dict())})
    optimizer.step()
    return [weight.item() for weight in weights]


judge(train, "SGD goes on with its momentum", [-2.5, -2.5])
