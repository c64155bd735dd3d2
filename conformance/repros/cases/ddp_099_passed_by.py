"""A rank that passes a whole model by never takes part in its reduction: the others wait there."""

# shows: DDP-099 test_a_model_that_a_rank_passes_by_*
# shows: DDP-105 test_a_model_that_a_rank_passes_by_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Passing(torch.nn.Linear):
    def forward(self, x, use):
        return super().forward(x) if use else 1 * x


def train(rank):
    before, layer = torch.nn.Linear(1, 1, bias=False), Passing(1, 1, bias=False)
    for each in (before, layer):
        torch.nn.init.ones_(each.weight)
    before = DistributedDataParallel(before)
    model = DistributedDataParallel(layer, find_unused_parameters=True)
    for _ in range(2):
        before.zero_grad()
        model.zero_grad()
        model(before(torch.full((1, 1), 2.0 + 4.0 * rank)), rank == 0).sum().backward()
    return before.module.weight.grad.item(), layer.weight.grad.item()


judge(train, "gradients are sums over the ranks that use a parameter, divided by the group's size", (4.0, 1.0))
