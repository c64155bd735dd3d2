"""A model moves to a smaller group after its Join was built: the context still asks the ranks of the former group."""

# shows: DDP-162 test_a_context_that_was_built_before_*

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    last = dist.new_group([1])
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    context = model.join()
    if rank == 1:
        model._update_process_group(last)
        with context:
            model(torch.ones(1, 1)).sum().backward()
    return "trained"


judge(train, "a context asks the ranks of the group in which its model is", "trained")
