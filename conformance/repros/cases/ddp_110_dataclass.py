"""With static_graph=True a model whose output is a dataclass leaves every rank its own gradients."""

# shows: DDP-110 test_a_static_graph_is_averaged_from_its_first_iteration_*
# shows: DDP-102 test_a_static_graph_is_averaged_from_its_first_iteration_*

from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


@dataclass
class Output:
    value: torch.Tensor


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return Output(self.linear(x))


def train(rank):
    model = DistributedDataParallel(Model(), static_graph=True)
    seen = []
    for _ in range(3):
        model.zero_grad()
        model(torch.full((1, 1), 4.0 * (rank + 1))).value.sum().backward()
        seen.append(model.module.linear.weight.grad.item())
    return seen


# one process: the mean of 4 and 8
judge(train, "gradients are averaged whatever holds the outputs", [6.0, 6.0, 6.0])
