"""With find_unused_parameters=True a sparse embedding that an iteration leaves out ends its backward in an error."""

# shows: DDP-100 test_a_table_that_nobody_looks_up_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 1, sparse=True)
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, look_up):
        return self.layer(x) + self.table(torch.tensor([0])) if look_up else self.layer(x)


def train(rank):
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    for look_up in (True, False):
        model.zero_grad()
        model(torch.ones(1, 1), look_up).sum().backward()
    return "no gradient" if model.module.table.weight.grad is None else "a gradient"


judge(train, "a parameter that nobody uses keeps its gradient, None here", "no gradient")
