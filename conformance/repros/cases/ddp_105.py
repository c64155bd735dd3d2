"""A static graph fails in the second iteration if an output is never in the loss."""

# shows: DDP-105 *
# shows: DDP-114 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, batch):
        return self.used(batch), self.unused(batch)


def train(rank):
    model = DistributedDataParallel(Branches(), static_graph=True)
    try:
        for _ in range(3):
            model(torch.ones(1, 1))[0].sum().backward()
    except RuntimeError as error:
        return str(error).splitlines()[0][:200]
    return f"trained; gradient of the unused parameter: {model.module.unused.weight.grad}"


judge(train, "a static graph finds unused parameters itself", "trained; gradient of the unused parameter: None")
