"""An output that holds itself is searched for ever: forward never returns."""

# shows: DDP-103 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Ring(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1)

    def forward(self, batch):
        output = {"value": self.used(batch)}
        output["way back"] = output
        return output


def train(rank):
    model = DistributedDataParallel(Ring(), find_unused_parameters=True)
    model(torch.full((1, 1), 4.0 * (rank + 1)))["value"].sum().backward()
    return model.module.used.weight.grad.item()


# one process: the mean of 4 and 8
judge(train, "outputs in which tensors cannot be found train, or end in an error", 6.0, "RuntimeError")
