"""The interleaved hook broadcasts in the order in which futures happen to complete on each rank."""

# shows: HOOK-036 *

import threading

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step_interleaved
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    # the hooks refuse Gloo by its name, so here it has another
    dist.Backend.register_backend("renamed", dist.ProcessGroupGloo, devices=["cpu"])
    group = dist.new_group(backend="renamed")

    def average(state, bucket):  # the first rank's buckets are ready in another order than the second one's
        dist.all_reduce(bucket.buffer().div_(2), group=group)
        future, late = torch.futures.Future(), 0.2 * (bucket.index() if rank else 3 - bucket.index())
        threading.Timer(late, future.set_result, [bucket.buffer()]).start()
        return future

    layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
    model = DistributedDataParallel(layers, process_group=group, bucket_cap_mb=5e-5)  # a bucket for each layer
    options = {"process_group": group, "overlap_with_ddp": True, "lr": 0.25}
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **options)
    model.register_comm_hook(group, hook_with_zero_step_interleaved(average, model, zero))
    for _ in range(5):
        model(torch.ones(1, 4)).sum().backward()
    return "trained"


judge(train, "buckets may be ready in any order", "trained")
