"""Both 8-bit hooks end in an IndexError."""

# shows: COMM-029 [*] [*]

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model.register_comm_hook(dist.group.WORLD, quantization_pertensor_hook)
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    gradient = model.module.weight.grad.item()
    return "about 6.0" if abs(gradient - 6.0) < 0.1 else f"{gradient}"  # within two steps of 8/255


# one process: the mean of 4 and 8
judge(train, "8-bit hooks return the mean of the gradients, quantised", "about 6.0")
