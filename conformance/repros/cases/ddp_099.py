"""With find_unused_parameters=True two forwards that use different parameters cannot share one backward."""

# shows: DDP-099 test_what_any_of_several_forwards_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Heads(torch.nn.ModuleList):
    def forward(self, x, head):
        return self[head](x)


def train(rank):
    heads = Heads([torch.nn.Linear(1, 1, bias=False) for _ in range(2)])
    model = DistributedDataParallel(heads, find_unused_parameters=True)
    x = torch.full((1, 1), 4.0 * (rank + 1))
    (model(x, 0) + model(x, 1)).sum().backward()
    return [head.weight.grad.item() for head in heads]


# one process: the mean of 4 and 8
judge(train, "gradients are averaged over the ranks", [6.0, 6.0])
