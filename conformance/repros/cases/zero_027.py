"""In overlap mode a thawed parameter is refused only on ranks that own a bucket; the others wait for them."""

# shows: ZERO-027 *

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
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    zero = ZeroRedundancyOptimizer(
        [*model.parameters(), frozen], torch.optim.SGD, process_group=group, overlap_with_ddp=True, lr=0.25
    )
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    try:
        for step in range(6):
            frozen.requires_grad_(step == 5)
            model(torch.ones(1, 1)).sum().backward()
            zero.step()
    except RuntimeError as error:
        return "refused" if step == 5 and "closed" not in str(error) else f"step {step}: {error}"
    return "accepted"


judge(train, "a parameter must not become trainable after the start", "refused")
