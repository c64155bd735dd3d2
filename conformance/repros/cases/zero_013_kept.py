"""Over bucket views a frozen parameter with a gradient is not stepped, though momentum would go on, silently."""

# shows: ZERO-013 test_a_frozen_parameter_that_keeps_a_gradient_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(4)) for _ in range(2)]
    kind = torch.optim.SGD
    zero = ZeroRedundancyOptimizer(weights, kind, lr=1.0, momentum=0.5, parameters_as_bucket_view=True)
    for gradient in (1.0, 0.0):  # frozen for the second step, with a gradient that was set to zero
        for weight in weights:
            weight.grad = torch.full((4,), gradient)
            weight.requires_grad_(gradient != 0.0)
        zero.step()
    return [weight.tolist() for weight in weights]


judge(train, "the parameters of the ordinary optimizer on every rank", [[-1.5] * 4] * 2)
