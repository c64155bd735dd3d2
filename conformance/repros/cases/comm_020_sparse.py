"""The compression hooks fail on sparse gradients."""

# shows: COMM-020 test_sparse_gradients_that_are_compressed_*
# shows: COMM-021 test_sparse_gradients_that_are_compressed_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Embedding(3, 1, sparse=True))
    model.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    model(torch.tensor([rank, 2, 2])).sum().backward()
    return model.module.weight.grad.to_dense().flatten().tolist()


# one process: each of two rows is used once by one rank of two, the last one twice by both
judge(train, "compression hooks return the mean of the gradients", [0.5, 0.5, 2.0])
