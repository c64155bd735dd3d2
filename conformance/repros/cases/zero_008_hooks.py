"""Hooks for the steps of all optimizers are called twice for a step of a sharded one."""

# shows: ZERO-008 test_hooks_of_all_optimizers_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .prelude import judge


def train(rank):
    weights, calls = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)], []
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    with register_optimizer_step_pre_hook(lambda *_: calls.append(1)):
        optimizer.step()
    return f"{len(calls)} call"


judge(train, "a hook is called once for a step, as with SGD", "1 call")
