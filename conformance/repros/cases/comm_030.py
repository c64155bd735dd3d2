"""An optimizer in the hook fails where the average arrives on another thread, which records a graph."""

# shows: COMM-030 test_an_optimizer_in_the_hook_records_no_graph_*

import threading

import torch
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
    _hook_then_optimizer,
    _OptimizerHookState,
)
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Stepping:
    def step_param(self, parameter, gradient):
        parameter.sub_(gradient)


def averages(_state, bucket):
    mean, later = bucket.buffer().div_(2), torch.futures.Future()
    torch.distributed.all_reduce(mean)
    threading.Timer(0.1, later.set_result, [mean]).start()
    return later


def train(rank):
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(layer.weight)
    model = DistributedDataParallel(layer)
    model.register_comm_hook(None, _hook_then_optimizer(averages, _OptimizerHookState(Stepping())))
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    return layer.weight.item()


judge(train, "an optimizer in the hook steps as soon as the average is there, as in backward", -6.0)
