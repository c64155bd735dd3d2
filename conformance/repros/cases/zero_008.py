"""Two parameters that are views of one tensor are stepped by two ranks, which then hold different values."""

# shows: ZERO-008 test_parameters_with_memory_in_common_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    whole = torch.zeros(4)
    weights = [torch.nn.Parameter(whole), torch.nn.Parameter(whole[:3])]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return f"the tensor is {whole.tolist()}"


judge(train, "both parameters are stepped, as by torch.optim.SGD", "the tensor is [-2.0, -2.0, -2.0, -1.0]")
