"""With skip_all_reduce_unused_params each rank skips what it does not use: what peers use stays local, silently."""

# shows: DDP-116 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.branches = torch.nn.ModuleList([torch.nn.Linear(1, 1, bias=False) for _ in range(2)])

    def forward(self, batch, branch):
        return self.branches[branch](batch)


def train(rank):
    options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True, "bucket_cap_mb": 1e-6}
    model = DistributedDataParallel(Branches(), **options)
    model(torch.full((1, 1), 4.0), branch=rank).sum().backward()
    return [None if each.weight.grad is None else each.weight.grad.item() for each in model.module.branches]


# one process: half of 4 for each of the branches
judge(train, "what some rank uses is averaged, or ranks that differ wait; no other number", [2.0, 2.0], "hangs")
