"""In overlap mode a changed learning rate shows in the parameter group and has no effect."""

# shows: ZERO-031 *

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
    for step in range(6):  # the first ones may be without effect, as documented
        if step == 5:
            zero.param_groups[0]["lr"] = 0.0
        before = model.module.weight.item()
        model(torch.ones(1, 1)).sum().backward()
        zero.step()
    return "stood still" if model.module.weight.item() == before else f"moved by {before - model.module.weight.item()}"


judge(train, "a step uses the learning rate of its parameter group, in the last one 0", "stood still")
