"""With two columns PowerSGD makes other gradients of one that has rank one, and then NaN."""

# shows: COMM-026 test_a_matrix_of_rank_one_is_reproduced_*

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(16, 16, bias=False))
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, use_error_feedback=False)
    model.register_comm_hook(state, powerSGD_hook)
    near = []
    for _ in range(5):
        model.zero_grad()
        model(torch.ones(1, 16)).sum().backward()
        near.append(bool(((model.module.weight.grad - 1).abs() < 0.01).all()))
    return near


judge(train, "every number of every gradient is nearly 1", [True] * 5)
