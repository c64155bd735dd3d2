"""What a program takes out of a parameter group comes back with the next step."""

# shows: ZERO-011 test_what_is_taken_out_of_a_group_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim.lr_scheduler import StepLR

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0)
    (group,) = optimizer.param_groups
    StepLR(optimizer, 1)
    optimizer.step()
    del group["initial_lr"]  # of the first schedule, which is over
    group["lr"] = 0.25
    optimizer.step()
    StepLR(optimizer, 1)
    return f"the second schedule begins at {group['initial_lr']}"


judge(train, "a schedule begins with the rate that the group has", "the second schedule begins at 0.25")
