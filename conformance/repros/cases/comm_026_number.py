"""PowerSGD makes a matrix of every gradient, also of a parameter of no dimension, and ends in an IndexError."""

# shows: COMM-026 test_a_parameter_of_no_dimension_*

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Scaled(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return super().forward(x) * self.scale


def train(rank):
    model = DistributedDataParallel(Scaled())
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook)
    for _ in range(6):
        model(torch.ones(1, 16)).sum().backward()
    return "trained"


judge(train, "what is no matrix is averaged as it is", "trained")
