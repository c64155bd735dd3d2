"""States are given to other parameters, where the local optimizer puts them in an order of its own."""

# shows: ZERO-017 test_an_optimizer_with_an_order_of_its_own_*

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


class LastFirst(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr, momentum=0.5)
        for group in self.param_groups:
            group["params"].reverse()


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(4)]

    def step(optimizer):
        for place, weight in enumerate(weights):
            weight.grad = torch.full((1,), float(2 << place))
        optimizer.step()

    zero = ZeroRedundancyOptimizer(weights, LastFirst, lr=1.0)
    step(zero)
    zero.consolidate_state_dict(0)
    saved = [zero.state_dict() if rank == 0 else None]
    dist.broadcast_object_list(saved, 0)
    zero = ZeroRedundancyOptimizer(weights, LastFirst, lr=1.0)
    zero.load_state_dict(saved[0])
    step(zero)
    return [weight.item() for weight in weights]


judge(train, "the second step goes on from the momentum of the first", [-5.0, -10.0, -20.0, -40.0])
