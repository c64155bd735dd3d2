"""shard_buckets=True ends in an assertion if a bucket needs more pieces than there are ranks."""

# shows: HOOK-040 *

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
    layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(3)])  # in one bucket
    model = DistributedDataParallel(layers, process_group=group)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero, shard_buckets=True))
    for _ in range(5):
        model(torch.ones(1, 4)).sum().backward()
        zero.step()
    return "trained"


judge(train, "shard_buckets=True shares each bucket among all ranks", "trained")
