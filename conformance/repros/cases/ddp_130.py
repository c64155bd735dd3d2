"""An optimizer that is attached to parameters after an evaluation steps with local gradients."""

# shows: DDP-130 test_optimizers_attached_when_*

import torch
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    model = DistributedDataParallel(layer)
    with torch.no_grad():
        model(torch.ones(1, 1))
    _apply_optimizer_in_backward(torch.optim.SGD, layer.parameters(), {"lr": 1.0})
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    return layer.weight.item()


# one process: 1 less the mean of 4 and 8
judge(train, "attached optimizers step with averages", -5.0)
