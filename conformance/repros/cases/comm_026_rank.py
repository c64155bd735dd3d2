"""A PowerSGDState whose matrix_approximation_rank is set anew takes the factors that it kept, which do not fit."""

# shows: COMM-026 test_settings_that_change_* by layer

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(16, 16, bias=False))
    state = PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook)
    for iteration in range(6):
        state.matrix_approximation_rank = 1 if iteration < 4 else 2
        model(torch.ones(1, 16)).sum().backward()
    return "trained"


judge(train, "a state's settings may be set, as its process group may", "trained")
