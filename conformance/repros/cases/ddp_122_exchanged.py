"""A delayed gradient that has changed places with another one is never averaged."""

# shows: DDP-122 test_delayed_gradients_that_change_places_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Beside(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, x):
        return self.one(x) + 2 * self.other(x)


def train(rank):
    layers = Beside()
    delayed = {"delay_all_reduce_named_params": [("other.weight", layers.other.weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers.one.weight, **delayed)
    for _ in range(2):
        one, other = layers.one.weight, layers.other.weight
        one.grad, other.grad = other.grad, one.grad
        model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
        torch.distributed.barrier()  # the delayed reduction, if there is one, has ended
    return [one.grad.item(), other.grad.item()]


# one process: the mean of 4 and 8, once and twice, and the other way round
judge(train, "gradients are averaged over the ranks", [18.0, 18.0])
