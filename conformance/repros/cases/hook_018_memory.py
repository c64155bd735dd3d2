"""Two parameters with one memory get a copy each when the overlapped step begins, silently."""

# shows: HOOK-018 test_parameters_with_memory_in_common_*

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
    layers = torch.nn.ModuleList([torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    layers[1].weight.data = layers[0].weight.data.zero_()
    layers.forward = lambda x: layers[0](x) + 2 * layers[1](x)
    model = DistributedDataParallel(layers, process_group=group)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 1.0}
    try:
        zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    except ValueError:
        return "refused or stepped"
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    for _ in range(5):  # the first two may pass without a step
        model.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
    values = [layer.weight.item() for layer in layers]
    return "refused or stepped" if values[0] == values[1] <= -9.0 else f"{values}"


judge(train, "both are stepped, as with SGD, or refused", "refused or stepped")
