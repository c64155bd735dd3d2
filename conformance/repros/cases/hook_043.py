"""Partial steps read the bucket, not what the wrapped hook returns: the update is not what .grad shows."""

# shows: HOOK-043 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def ones(state, bucket):
    future = torch.futures.Future()
    future.set_result(torch.ones_like(bucket.buffer()))
    return future


def train(rank):
    # the hooks refuse Gloo by its name, so here it has another
    dist.Backend.register_backend("renamed", dist.ProcessGroupGloo, devices=["cpu"])
    group = dist.new_group(backend="renamed")
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), process_group=group)
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step(ones, model, zero))
    model.module.weight.data.zero_()
    for _ in range(6):  # the first ones may be without effect, as documented
        before = model.module.weight.item()
        model.zero_grad()
        model(torch.full((1, 1), 8.0)).sum().backward()
    return f"gradient {model.module.weight.grad.item()}, moved by {before - model.module.weight.item()}"


judge(train, "the step subtracts lr * gradient, with the gradient that the hook returns", "gradient 1.0, moved by 0.25")
