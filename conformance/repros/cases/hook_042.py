"""With find_unused_parameters=True the overlapped optimizer never steps, silently."""

# shows: HOOK-042 *

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
    layer = torch.nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(layer, process_group=group, find_unused_parameters=True)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    try:
        model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    except (RuntimeError, ValueError):
        return "refused"
    before = layer.weight.item()
    for _ in range(50):
        model(torch.ones(1, 1)).sum().backward()
        zero.step()
    return "trained" if layer.weight.item() != before else "no update in 50 iterations"


judge(train, "parameters are updated after a few iterations at the latest", "trained", "refused")
