"""Both 8-bit hooks fail on sparse gradients."""

# shows: COMM-029 test_hooks_of_eight_bits_take_sparse_and_empty_buckets *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Embedding(2, 1, sparse=True))
    model.register_comm_hook(dist.group.WORLD, quantization_pertensor_hook)
    model(torch.tensor([rank])).sum().backward()
    gradient = model.module.weight.grad.to_dense().flatten().tolist()
    return "about 0.5" if all(abs(each - 0.5) < 0.01 for each in gradient) else f"{gradient}"


# one process: each of two rows is used by one rank of two
judge(train, "8-bit hooks return the mean of the gradients, quantised", "about 0.5")
