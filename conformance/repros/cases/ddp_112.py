"""An output in a dataclass is no clone: a change in place spoils what backward needs."""

# shows: DDP-112 *
# shows: DDP-102 test_an_output_that_backward_needs_*

from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


@dataclass
class Output:
    value: torch.Tensor


class Growing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def forward(self, batch):
        return Output(self.layer(batch).exp())  # whose backward needs the value


def train(rank):
    model = DistributedDataParallel(Growing(), find_unused_parameters=True)
    output = model(torch.full((1, 1), 4.0 * (rank + 1)))
    output.value.mul_(2).sum().backward()
    return model.module.layer.weight.grad.item()


# one process: twice the mean of 4 and 8
judge(train, "outputs that pass DDP's sink are clones, so that they may be changed in place", 12.0)
