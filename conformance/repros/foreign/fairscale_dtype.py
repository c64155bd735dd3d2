"""A group of another dtype that is added to OSS is not refused, and its parameters are not stepped on every rank."""

# column: fairscale-oss
# shows: ZERO-014 *

import torch
from fairscale.optim import OSS

from ..cases.prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    added = [torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    optimizer = OSS(weights, torch.optim.SGD, lr=1.0)
    optimizer.add_param_group({"params": added})
    for _ in range(2):
        for weight in [*weights, *added]:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    return [weight.tolist() for weight in [*weights, *added]]


judge(train, "step updates every parameter on every rank", [[-2.0, -2.0]] * 4)
