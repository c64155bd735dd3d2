"""Copying a sharded optimizer, as one does to try a step out, fails in the middle and not by a refusal."""

# shows: ZERO-008 test_a_copied_optimizer_*

import copy

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    zero = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    try:
        others, another = copy.deepcopy((weights, zero))
    except TypeError:
        return "refused"
    for weight in (*weights, *others):
        weight.grad = torch.ones(1)
    zero.step()
    another.step()
    return f"stepped to {[weight.item() for weight in (*weights, *others)]}"


judge(train, "a copy that steps by itself, or a TypeError", "refused", "stepped to [-1.0, -1.0, -1.0, -1.0]")
