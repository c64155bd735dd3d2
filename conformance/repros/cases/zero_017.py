"""A state that belongs to no parameter cannot be loaded."""

# shows: ZERO-017 *

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


class Counting(torch.optim.SGD):
    def step(self, closure=None):
        self.state["all"]["steps"] = self.state["all"].get("steps", 0) + 1
        return super().step(closure)


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    ordinary = Counting(weights, lr=1.0)
    for _ in range(3):
        ordinary.step()
    zero = ZeroRedundancyOptimizer(weights, Counting, lr=1.0)
    zero.load_state_dict(ordinary.state_dict())
    return f"goes on from {zero.optim.state['all']['steps']} steps"


judge(train, "a loaded optimizer goes on where the saved one was", "goes on from 3 steps")
