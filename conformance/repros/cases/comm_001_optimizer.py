"""An optimizer in the hook steps with what the bucket holds, not with what the wrapped hook returns."""

# shows: COMM-001 test_an_optimizer_in_the_hook_*

import torch
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
    _hook_then_optimizer,
    _OptimizerHookState,
)
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Stepping:
    def step_param(self, parameter, gradient):
        parameter.data.sub_(gradient)


def averages(_state, bucket):
    mean = bucket.buffer() / 2
    torch.distributed.all_reduce(mean)
    done = torch.futures.Future()
    done.set_result(mean)
    return done


def train(rank):
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = DistributedDataParallel(layer)
    model.register_comm_hook(None, _hook_then_optimizer(averages, _OptimizerHookState(Stepping())))
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    return [layer.weight.grad.item(), layer.weight.item()]


judge(train, "gradients and step are those of the hook's future", [6.0, -6.0])
