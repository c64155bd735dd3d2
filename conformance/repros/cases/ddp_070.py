"""A layer that is checkpointed twice (reentrant) gets gradients that differ between ranks, without an error."""

# shows: DDP-070 *

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from .prelude import judge


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, batch):
        return sum(checkpoint(self.layer, batch, use_reentrant=True) for _ in range(2))


def train(rank):
    model = DistributedDataParallel(Twice())
    try:
        model(torch.full((1, 1), 2.0 * (rank + 1), requires_grad=True)).sum().backward()
    except RuntimeError:
        return "refused"
    return model.module.layer.weight.grad.item()


# one process: twice the mean of 2 and 4
judge(train, "the mean gradient, or an error", 6.0, "refused")
