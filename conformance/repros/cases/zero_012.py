"""With bucket views a parameter that is given other storage is not sent any more: ranks drift apart."""

# shows: ZERO-012 *

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    zero = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, parameters_as_bucket_view=True, lr=0.25)
    for parameter in parameters:
        parameter.data = parameter.data.clone()  # as a cast or a move does
        parameter.grad = torch.ones(2)
    zero.step()
    return [parameter.tolist() for parameter in parameters]


judge(train, "the parameters of the ordinary optimizer on every rank", [[0.75, 0.75], [0.75, 0.75]])
