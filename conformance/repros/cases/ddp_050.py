"""A backward that keeps its graph (create_graph=True) works once; the second one raises."""

# shows: DDP-050 test_a_backward_that_keeps_its_graph_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    linear = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(linear.weight, 1.0)
    torch.nn.init.constant_(linear.bias, 0.0)
    model = DistributedDataParallel(linear)
    seen = []
    for _ in range(3):
        model.zero_grad()
        (model(torch.full((1, 1), rank + 1.0)) ** 2).sum().backward(create_graph=True)
        seen.append(linear.weight.grad.item())
    return seen


# with input x the gradient of (w x + b)^2 is 2 x^2: 2 and 8
judge(train, "every backward leaves the average", [5.0, 5.0, 5.0])
