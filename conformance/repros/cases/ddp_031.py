"""Parameters of equal shape in another order are accepted, and unrelated gradients are averaged."""

# shows: DDP-031 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Scaled(torch.nn.Module):
    def __init__(self, names):
        super().__init__()
        for name in names:
            self.register_parameter(name, torch.nn.Parameter(torch.ones(1)))

    def forward(self, batch):
        return 2 * batch * self.a + 10 * batch * self.b


def train(rank):
    try:
        model = DistributedDataParallel(Scaled("ab" if rank == 0 else "ba"))
    except (RuntimeError, ValueError):
        return "refused"
    model(torch.ones(1)).sum().backward()
    return {name: getattr(model.module, name).grad.item() for name in "ab"}


judge(train, "the gradient of a parameter is the mean of its own gradients", {"a": 2.0, "b": 10.0}, "refused")
