"""With static_graph=True a gradient taken of the loss before the backward leaves every rank its own gradients."""

# shows: DDP-110 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    model = DistributedDataParallel(model, static_graph=True)
    seen = []
    for _ in range(3):
        model.zero_grad()
        x = torch.full((1, 1), 4.0 * (rank + 1), requires_grad=True)
        loss = model(x).sum()
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + slope.sum()).backward()
        seen.append(model.module.weight.grad.item())
    return seen


# one process: the mean of 4 + 1 and 8 + 1
judge(train, "a loss with a gradient penalty is averaged", [7.0, 7.0, 7.0])
