"""A parameter of an overlapping optimizer that its model does not have is never stepped, silently."""

# shows: HOOK-018 test_a_parameter_that_the_model_does_not_have_*

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
    beside = torch.nn.Parameter(torch.zeros(1))
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 1.0}
    try:
        zero = ZeroRedundancyOptimizer([*model.parameters(), beside], torch.optim.SGD, **options)
        model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    except ValueError:
        return "refused or stepped"
    for _ in range(5):  # the first two may pass without a step
        beside.grad = torch.ones(1)
        model(torch.ones(1, 1)).sum().backward()
    return "refused or stepped" if beside.item() <= -3.0 else f"{beside.item()}"


judge(train, "it is stepped in each iteration, as with SGD, or refused", "refused or stepped")
