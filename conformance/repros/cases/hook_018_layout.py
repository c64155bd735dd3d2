"""The hooks flatten parameters row by row: gradients of a transposed one come out in another order."""

# shows: HOOK-018 *every_layout*
# shows: HOOK-037 *follows_a_hook_that_failed*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Across(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 3).t())

    def forward(self, x):
        return x @ self.weight


def train(rank):
    # the hooks refuse Gloo by its name, so here it has another
    dist.Backend.register_backend("renamed", dist.ProcessGroupGloo, devices=["cpu"])
    group = dist.new_group(backend="renamed")
    model = DistributedDataParallel(Across(), process_group=group)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    for _ in range(4):  # the first ones may be without effect, as documented
        model.zero_grad()
        model(torch.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    return model.module.weight.grad.tolist()


judge(train, "gradients are those of DDP without the hook", [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
