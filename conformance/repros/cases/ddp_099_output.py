"""A parameter that is itself an output is taken for unused by the search: backward ends in an error."""

# shows: DDP-099 test_a_parameter_that_is_an_output_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Handing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch):
        return self.layer(batch), self.scale


def train(rank):
    model = DistributedDataParallel(Handing(), find_unused_parameters=True)
    output, scale = model(torch.ones(1, 1))
    (output.sum() + (rank + 1) * scale.sum()).backward()
    return model.module.scale.grad.item()


judge(train, "what the loss uses is averaged: 1 and 2 are 1.5", 1.5)
