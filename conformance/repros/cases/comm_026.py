"""PowerSGD starts all-reduces in callbacks of futures: with several buckets ranks disagree about their order."""

# shows: COMM-026 * by layer, several buckets
# shows: COMM-026 test_with_a_warm_start_each_of_several_buckets_*

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(8)])
    model = DistributedDataParallel(layers, bucket_cap_mb=0.001)
    model.register_comm_hook(PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1), powerSGD_hook)
    for step in range(60):
        model.zero_grad()
        model(torch.randn(4, 16, generator=torch.Generator().manual_seed(2 * step + rank))).sum().backward()
        if not all(equal_on_both(parameter.grad) for parameter in layers.parameters()):
            return f"step {step}: gradients differ between the ranks"
    return "equal gradients"


def equal_on_both(gradient):
    torch.distributed.all_reduce(mean := gradient / 2)
    return torch.allclose(gradient, mean)


judge(train, "all ranks decompress the same gradients", "equal gradients")
