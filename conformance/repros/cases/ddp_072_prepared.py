"""A forward without a backward leaves the reducer prepared: the next backward is averaged, though under no_sync."""

# shows: DDP-072 test_a_parameter_that_is_an_output_stays_local_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Model(torch.nn.Module):
    """Returns a parameter beside its output."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.linear(x), self.scale


def train(rank):
    model = DistributedDataParallel(Model())
    model(torch.ones(1, 1))
    with model.no_sync():
        output, scale = model(torch.ones(1, 1))
        (output.sum() + (rank + 1) * scale.sum()).backward()
    found = model.module.scale.grad.item()
    return "local gradients" if found == rank + 1 else f"a gradient of {found} where this rank's is {rank + 1}.0"


judge(train, "inside no_sync gradients stay local", "local gradients")
