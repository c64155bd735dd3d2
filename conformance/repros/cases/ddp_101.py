"""A backward from an argument that the module hands out fails where unused parameters are looked for."""

# shows: DDP-101 test_where_use_is_searched_too_an_argument_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class HandingOn(torch.nn.Linear):
    def forward(self, x):
        return x, super().forward(x)


def train(rank):
    before, head = torch.nn.Linear(1, 1, bias=False), HandingOn(1, 1, bias=False)
    for layer in (before, head):
        torch.nn.init.ones_(layer.weight)
    model = DistributedDataParallel(head, find_unused_parameters=True)
    hidden, out = model(before(torch.full((1, 1), 2.0 + 4.0 * rank)))
    hidden.sum().backward(retain_graph=True)
    out.sum().backward()
    return head.weight.grad.item()


judge(train, "the head has the mean of the ranks' gradients", 4.0)
