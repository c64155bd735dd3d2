"""A main hook that calls its object's own step counts its rank as active again: the block never ends."""

# shows: JOIN-055 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


class Stepper(Joinable, JoinHook):
    join_device, join_process_group = torch.device("cpu"), property(lambda self: dist.group.WORLD)

    def __init__(self):
        super().__init__()
        self.sums = []

    def join_hook(self, **kwargs):
        return self

    def main_hook(self, value=0.0):  # also what a rank with inputs does in each step
        Join.notify_join_context(self)
        dist.all_reduce(whole := torch.tensor([value, 0.0]))
        self.sums.append(whole[0].item())


def train(rank):
    stepper = Stepper()
    with Join([stepper]):
        for _ in range(INPUTS[rank]):
            stepper.main_hook(1.0)
    return stepper.sums


sums = [float(sum(step < inputs for inputs in INPUTS)) for step in range(max(INPUTS))]
judge(train, "ranks that have joined shadow the others until all have joined", sums)
