"""Behind a backward through a weight alone, what the second of two outputs adds to it stays local."""

# shows: DDP-062 test_a_penalty_that_is_differentiated_first_*
# shows: DDP-049 test_a_penalty_that_is_differentiated_first_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Model(torch.nn.Module):
    """Two scalar layers, each with an output of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, x):
        return self.first(x), self.second(x)


def train(rank):
    model = DistributedDataParallel(Model())
    outputs = model(torch.full((1, 1), rank + 1.0))
    model.module.second.weight.sum().backward()
    for output in outputs:
        output.sum().backward()
    return [layer.weight.grad.item() for layer in (model.module.first, model.module.second)]


judge(train, "gradients are the mean over the ranks of all that was differentiated", [1.5, 2.5])
