"""With a search, a penalty before the loss is reduced on a rank that uses no other weight, which then hangs."""

# shows: DDP-099 test_a_penalty_before_the_loss_is_averaged_with_it_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Model(torch.nn.Module):
    """Two scalar layers, the second of which runs where it is asked for."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, x, both):
        return self.first(x) + self.second(x) if both else self.first(x)


def train(rank):
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    output = model(torch.full((1, 1), rank + 1.0), rank > 0)
    model.module.first.weight.sum().backward()
    output.sum().backward()
    return [layer.weight.grad.item() for layer in (model.module.first, model.module.second)]


judge(train, "a gradient is the sum of those that exist, divided by the number of ranks", [2.5, 1.0])
