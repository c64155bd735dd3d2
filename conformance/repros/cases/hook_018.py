"""The interleaved hook starts and awaits broadcasts inside callbacks of futures: ranks hang."""

# shows: HOOK-018 *
# shows: HOOK-019 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step_interleaved
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    # the hooks refuse Gloo by its name, so here it has another
    dist.Backend.register_backend("renamed", dist.ProcessGroupGloo, devices=["cpu"])
    group = dist.new_group(backend="renamed")
    layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
    model = DistributedDataParallel(layers, process_group=group, bucket_cap_mb=5e-5)  # a bucket for each layer
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step_interleaved(allreduce_hook, model, zero))
    for _ in range(40):
        model(torch.ones(1, 4)).sum().backward()
        zero.step()
    return "trained"


judge(train, "training with the hook ends as with DDP and an ordinary optimizer", "trained")
