"""An optimizer in the hook is not shown the gradients of complex parameters."""

# shows: COMM-016 test_an_optimizer_in_the_hook_steps_complex_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
    _hook_then_optimizer,
    _OptimizerHookState,
)
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Stepping:
    def step_param(self, parameter, gradient):
        parameter.data.add_(gradient, alpha=-1.0)


def train(rank):
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.complex64)
    torch.nn.init.zeros_(layer.weight)
    model = DistributedDataParallel(layer)
    model.register_comm_hook(dist.group.WORLD, _hook_then_optimizer(allreduce_hook, _OptimizerHookState(Stepping())))
    output = model(torch.full((1, 1), 4.0 * (rank + 1), dtype=torch.complex64))
    (output.real + 2 * output.imag).sum().backward()
    return str(layer.weight.item())


# one process: the mean of (4 + 8i) and (8 + 16i) is subtracted
judge(train, "the optimizer steps with the averaged gradient", "(-6-12j)")
