"""An overlapping optimizer steps parameters of its model that it was not given, silently."""

# shows: HOOK-038 test_buckets_of_which_the_optimizer_has_nothing_*

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
    model = DistributedDataParallel(torch.nn.Linear(1, 1), process_group=group)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 1.0}
    zero = ZeroRedundancyOptimizer([model.module.weight], torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    before = model.module.bias.item()
    for _ in range(5):  # the first two may pass without a step
        model(torch.ones(1, 1)).sum().backward()
    return "stays" if model.module.bias.item() == before else f"is moved by {model.module.bias.item() - before:g}"


judge(train, "a bias that the optimizer was not given stays as it is", "stays")
