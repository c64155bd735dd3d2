"""The hooks step what a static graph never uses, with zeros for a gradient: weight decay shrinks it."""

# shows: HOOK-018 *leaves_out*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.used(x)


def train(rank):
    # the hooks refuse Gloo by its name, so here it has another
    dist.Backend.register_backend("renamed", dist.ProcessGroupGloo, devices=["cpu"])
    group = dist.new_group(backend="renamed")
    model = DistributedDataParallel(Two(), process_group=group, static_graph=True)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25, "weight_decay": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    for _ in range(6):  # the first ones may be without effect, as documented
        model.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
    return model.module.unused.item()


judge(train, "a parameter without a gradient is left alone, as by the ordinary optimizer", 1.0)
