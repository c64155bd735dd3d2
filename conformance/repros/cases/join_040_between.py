"""A joinable that communicates between DDP's forward and backward meets DDP's collectives."""

# shows: JOIN-040 test_a_*_between_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


class Counter(Joinable, JoinHook):
    join_device, join_process_group = torch.device("cpu"), property(lambda self: dist.group.WORLD)

    def __init__(self):
        super().__init__()

    def join_hook(self, **kwargs):
        return self

    def main_hook(self, present=0.0):  # with 1.0: what a rank with inputs does in each step
        Join.notify_join_context(self)
        dist.all_reduce(count := torch.full([3], present))
        return count[0].item()


def train(rank):
    counts, model, counter = [], DistributedDataParallel(torch.nn.Linear(1, 1)), Counter()
    with Join([model, counter]):
        for _ in range(INPUTS[rank]):
            loss = model(torch.ones(1, 1)).sum()
            counts.append(counter.main_hook(1.0))
            loss.backward()
    return "right" if counts == [sum(step < n for n in INPUTS) for step in range(INPUTS[rank])] else counts


judge(train, "main hooks shadow the collectives, so that counting the ranks with inputs comes out right", "right")
