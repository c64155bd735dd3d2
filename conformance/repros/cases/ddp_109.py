"""_set_static_graph, refused because it came too late, leaves the model unable to train on."""

# shows: DDP-109 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model(torch.ones(1, 1)).sum().backward()
    try:
        model._set_static_graph()
    except RuntimeError:  # as documented
        model.zero_grad()
        model(torch.full((1, 1), 2.0 * (rank + 1))).sum().backward()
        return f"refused, then trained: {model.module.weight.grad.item()}"
    return "accepted"


judge(train, "a request that came too late is refused, and has no effect", "refused, then trained: 3.0")
