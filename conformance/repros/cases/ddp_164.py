"""A static graph cannot be another one in another group: moving keeps what was learned of it."""

# shows: DDP-164 test_in_a_new_group_a_static_graph_*

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.later = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, batch, both):
        return self.always(batch) + self.later(batch) if both else self.always(batch)


def train(rank):
    model = DistributedDataParallel(Branches(), static_graph=True)
    for both in (False, True):
        for _ in range(3):
            model.zero_grad()
            model(torch.full((1, 1), 4.0 * (rank + 1)), both).sum().backward()
        if not both:
            model._update_process_group(dist.new_group([0, 1]))
    return model.module.later.weight.grad.item()


# one process: the mean of 4 and 8
judge(train, "in a new group the state of the reducer is reset", 6.0)
