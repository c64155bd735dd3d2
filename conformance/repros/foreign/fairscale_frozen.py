"""A parameter that was frozen when OSS was made and is trained later is stepped on its owner alone."""

# column: fairscale-oss
# shows: ZERO-013 *

import torch
from fairscale.optim import OSS

from ..cases.prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2), requires_grad=number > 1) for number in range(4)]
    optimizer = OSS(weights, torch.optim.SGD, lr=1.0)
    for step in range(3):
        for weight in weights:
            weight.requires_grad_(weight.requires_grad or step > 0)
            weight.grad = torch.ones_like(weight) if weight.requires_grad else None
        optimizer.step()
    return [weight.tolist() for weight in weights]


judge(train, "every rank ends with the same parameters", [[-2.0, -2.0]] * 2 + [[-3.0, -3.0]] * 2)
