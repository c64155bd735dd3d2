"""powerSGD_hook fails where a parameter has no elements, or a gradient is sparse, as soon as compression starts."""

# shows: COMM-026 test_low_rank_compression_takes_sparse_and_empty_buckets *

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.vector = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return (self.vector * x).sum() + self.empty.sum()


def train(rank):
    model = DistributedDataParallel(Model())
    state = PowerSGDState(None, start_powerSGD_iter=0, use_error_feedback=False, warm_start=False)
    model.register_comm_hook(state, powerSGD_hook)
    model(torch.tensor([1.0 + rank, 3.0])).backward()
    return str(model.module.vector.grad.tolist())


# one process: the mean over two ranks of 1 and 2, and of 3 and 3; vectors are not compressed
judge(train, "the hook averages what it cannot compress", "[1.5, 3.0]")
