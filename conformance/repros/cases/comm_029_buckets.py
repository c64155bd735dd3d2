"""Both 8-bit hooks start a gather in a callback: with several buckets ranks start them in different orders."""

# shows: COMM-029 [*] [*]
# shows: COMM-029 test_hooks_of_eight_bits_take_parameters_of_every_layout [*]

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = [torch.nn.Linear(5, 5) for _ in range(6)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1e-5)
    model.register_comm_hook(dist.group.WORLD, quantization_pertensor_hook)
    for _ in range(40):
        model(torch.ones(1, 5)).sum().backward()
    return "trained"


judge(train, "8-bit hooks average the buckets of a model, however many there are", "trained")
