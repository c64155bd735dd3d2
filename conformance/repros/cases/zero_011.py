"""A scheduler that cycles momentum takes a sharded Adam for an optimizer without any."""

# shows: ZERO-011 test_schedulers_that_ask_for_settings_which_nobody_gave_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    zero = ZeroRedundancyOptimizer(weights, torch.optim.Adam, lr=0.5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(zero, 0.5, total_steps=10)
    return f"betas begin with {scheduler.optimizer.param_groups[0]['betas'][0]}"


judge(train, "schedulers work as with the ordinary optimizer", "betas begin with 0.95")
