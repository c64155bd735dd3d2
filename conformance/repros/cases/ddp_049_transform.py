"""A model with buffers cannot be differentiated by torch.func.grad: they are written inside the transform."""

# shows: DDP-049 test_the_slope_of_a_model_with_buffers_by_a_transform_* *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        return self.weight * x * self.scale


def train(rank):
    model = DistributedDataParallel(Scaled())
    x = torch.tensor([1.0 + rank])
    torch.func.grad(lambda given: model(given).square().sum())(x).sum().backward()
    return str(model.module.weight.grad.item())


# one process: the slope 2 w w x s s has the gradient 4 w x by w, on average 4 and 8
judge(train, "gradients are averaged", "6.0")
