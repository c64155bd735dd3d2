"""In the Python-reducer mode a gradient is averaged in memory that the backward is still to read."""

# shows: DDP-167 test_the_python_reducer_changes_no_gradient_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Summed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.square = torch.nn.Parameter(torch.zeros(2, 2))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, scale):
        return (self.weight * scale + self.square.view(-1)) * scale


def train(rank):
    model = DistributedDataParallel(Summed())
    model._register_accum_grad_hook()
    model(torch.tensor([1.0 + rank] * 4)).sum().backward()
    return model.module.weight.grad.tolist()


# the mean of 1 * 1 and 2 * 2; what is averaged before it is passed on gives 1.5 * 1.5
judge(train, "the gradient of each parameter is the mean over the ranks", [2.5] * 4)
