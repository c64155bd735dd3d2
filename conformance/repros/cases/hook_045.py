"""Giving DDP another group of the same ranks ends the overlapped training in an assertion."""

# shows: HOOK-045 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    # the hooks refuse Gloo by its name, so here it has another
    dist.Backend.register_backend("renamed", dist.ProcessGroupGloo, devices=["cpu"])
    group = dist.new_group(backend="renamed")
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), process_group=group)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    for step in range(8):
        if step == 5:
            model._update_process_group(dist.new_group(backend="renamed"))
        model(torch.ones(1, 1)).sum().backward()
        zero.step()
    return "trained"


judge(train, "a model trains on in its new group", "trained")
