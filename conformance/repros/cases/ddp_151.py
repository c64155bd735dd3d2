"""A parameter of the root module that is ignored by the documented recipe is broadcast all the same."""

# shows: DDP-151 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Root(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.own, self.layer = torch.nn.Parameter(torch.full((1,), 1.0 + rank)), torch.nn.Linear(1, 1)

    def forward(self, batch):
        return self.own * batch + self.layer(batch)


def train(rank):
    root = Root(rank)
    # the documented recipe joins the names of module and parameter by a dot, and the root module's name is empty
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(root, [".own"])
    model = DistributedDataParallel(root)
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    broadcast = root.own.item() != 1.0 + rank
    reduced = root.own.grad.item() != 4.0 * (rank + 1)
    return f"rank's own value: {'lost' if broadcast else 'kept'}, its own gradient: {'lost' if reduced else 'kept'}"


judge(train, "an ignored parameter is neither broadcast nor reduced", "rank's own value: kept, its own gradient: kept")
