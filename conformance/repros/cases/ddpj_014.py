"""divide_by_initial_world_size=False has no effect, silently, on a model with the all-reduce hook."""

# shows: DDPJ-014 *

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model.register_comm_hook(None, allreduce_hook)
    with model.join(divide_by_initial_world_size=False):
        for _ in range(INPUTS[rank]):
            model.zero_grad()
            model(torch.full((1, 1), 4.0)).sum().backward()
            if (seen := model.module.weight.grad.item()) != 4.0:  # every gradient is 4, so their mean is
                return f"mean gradient of the ranks with inputs: {seen}"
    return "mean gradients of 4.0"


judge(train, "gradients are divided by the number of ranks that have inputs", "mean gradients of 4.0")
