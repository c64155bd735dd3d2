"""A parameter that was used under no_sync, and whose gradient was cleared, ends the next backward in an error."""

# shows: DDP-100 test_what_was_accumulated_and_cleared_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, batch, with_b):
        return self.a(batch) + self.b(batch) if with_b else self.a(batch)


def train(_rank):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    with model.no_sync():
        model(torch.ones(1, 1), with_b=True).sum().backward()
    model.zero_grad()
    try:
        model(torch.ones(1, 1), with_b=False).sum().backward()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return f"gradient {model.module.b.weight.grad}"


judge(train, "a parameter that no rank used has no gradient", "gradient None")
