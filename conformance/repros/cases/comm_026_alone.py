"""PowerSGD waits for all-reduces on the backend's threads: where each of them waits, none is left to run any."""

# shows: COMM-026 test_with_a_warm_start_each_of_several_buckets_*

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(_rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(16)])
    model = DistributedDataParallel(layers, bucket_cap_mb=0.001)  # a bucket for each layer
    model.register_comm_hook(PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=1), powerSGD_hook)
    for _ in range(200):
        model(torch.ones(1, 16)).sum().backward()
    return "trained"


judge(train, "a rank alone trains", "trained", world=1)
