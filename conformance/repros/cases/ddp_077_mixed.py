"""One backward through a forward under no_sync and one outside of it is refused where their parameters differ."""

# shows: DDP-077 test_one_backward_through_forwards_inside_and_outside_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, batch, which):
        return getattr(self, which)(batch)


def train(rank):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    batch = torch.full((1, 1), 4.0 * (rank + 1))
    with model.no_sync():
        inside = model(batch, "a")
    try:
        (inside + model(batch, "b")).sum().backward()
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    return f"gradients {[parameter.grad.item() for parameter in model.parameters()]}"


# one process: the mean of 4 and 8
judge(train, "what either forward uses is averaged", "gradients [6.0, 6.0]")
