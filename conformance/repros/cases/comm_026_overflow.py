"""After one gradient that overflows, as under a loss scaler, PowerSGD makes all later gradients NaN."""

# shows: COMM-026 test_a_gradient_that_overflows_*

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(16, 16, bias=False))
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    finite = []
    for iteration in range(6):
        model.zero_grad()
        model(torch.full((1, 16), float("inf") if iteration == 3 else 1.0)).sum().backward()
        finite.append(bool(model.module.weight.grad.isfinite().all()))
    return finite


judge(train, "only the iteration that overflows has damaged gradients", [True, True, True, False, True, True])
