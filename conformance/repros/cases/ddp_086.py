"""A second forward overwrites the buffers in place that the graph of the first one still needs."""

# shows: DDP-086 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Scaled(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1, bias=False)
        torch.nn.init.ones_(self.weight)
        self.register_buffer("scale", torch.full((1,), 2.0))

    def forward(self, x):
        return super().forward(x) * self.scale


def train(rank):
    model = DistributedDataParallel(Scaled())
    first, second = model(torch.ones(1, 1)), model(torch.ones(1, 1))
    (first + second).sum().backward()
    return model.module.weight.grad.item()


judge(train, "buffers are synchronised without harm to the graph of an earlier forward", 4.0)
