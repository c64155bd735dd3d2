"""A joined rank reports which parameters an earlier iteration used: one that nobody used gets zeros."""

# shows: DDPJ-030 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 2)  # how many batches each rank has


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.always, self.once = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, batch, step):
        return self.always(batch) + (self.once(batch) if step == 0 else 0)


def train(rank):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    with Join([model]):
        for step in range(INPUTS[rank]):
            model.zero_grad()
            model(torch.ones(1, 1), step).sum().backward()
            if step > 0 and (seen := model.module.once.weight.grad) is not None:
                return f"step {step}: nobody used it, its gradient is {seen.item()}"
    return "ended"


judge(train, "a parameter that no rank used keeps its gradient, here None", "ended")
