"""A forward outside prepares the reducer: the backward of one that ran inside no_sync is averaged in its place."""

# shows: DDP-074 test_a_forward_inside_stays_local_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    x = torch.full((1, 1), rank + 1.0)
    with model.no_sync():
        inside = model(x)
    outside = model(x)
    inside.sum().backward()
    first = model.module.weight.grad.item()
    outside.sum().backward()
    return "local" if first == rank + 1 else "averaged", model.module.weight.grad.item()


judge(train, "what ran inside no_sync stays local until the next backward averages all", ("local", 3.0))
