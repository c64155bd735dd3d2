"""In overlap mode the state cannot be saved: consolidate_state_dict ends in an AttributeError."""

# shows: ZERO-032 *

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
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25, "momentum": 0.5}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    for _ in range(5):  # the first ones may be without effect, as documented
        model(torch.ones(1, 1)).sum().backward()
        zero.step()
    zero.consolidate_state_dict()
    return "saved" if rank != 0 or zero.state_dict()["state"] else "saved nothing"


judge(train, "consolidate_state_dict collects the state of all ranks, on rank 0", "saved")
