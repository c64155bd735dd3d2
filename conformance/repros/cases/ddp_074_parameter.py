"""In the Python-reducer mode no_sync counts where the backward runs, not where its forward ran."""

# shows: DDP-074 test_where_the_forward_ran_counts_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    x = torch.full((1, 1), rank + 1.0)
    outside = model(x)
    with model.no_sync():
        outside.sum().backward()
    return model.module.weight.grad.item()


judge(train, "a forward outside no_sync is averaged, wherever its backward runs", 1.5)
