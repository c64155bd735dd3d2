"""After a backward that left a parameter out every later forward is refused, though the error was caught."""

# shows: DDP-062 test_what_a_backward_left_out_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

    def forward(self, x, both):
        return self.a(x) + self.b(x) if both else self.a(x)


def train(rank):
    model, refused = DistributedDataParallel(Branches()), 0
    for both in (False, True, True, True):
        try:
            model(torch.ones(1, 1), both).sum().backward()
        except RuntimeError:
            refused += 1
    return refused


judge(train, "the next forward after an incomplete backward raises, and those after it do not", 1)
