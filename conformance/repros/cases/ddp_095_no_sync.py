"""Under no_sync backward returns before the futures of a buffer hook that its forward has called are done."""

# shows: DDP-095 test_futures_of_a_hook_are_done_when_a_backward_under_no_sync_*

import threading
import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Counting(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        self.register_buffer("count", torch.zeros(1))


def hook(_state, buffers):
    future = torch.futures.Future()

    def end():
        time.sleep(0.5)
        buffers["count"] += 1000
        future.set_result(None)

    threading.Thread(target=end).start()
    return [future]


def train(_rank):
    model = DistributedDataParallel(Counting())
    model._register_buffer_comm_hook(None, hook)
    model(torch.ones(1, 1)).sum().backward()
    with model.no_sync():  # what its first forward does is decided by the one before
        model(torch.ones(1, 1)).sum().backward()
    return model.module.count.item()


judge(train, "what a buffer hook's futures do has happened when backward returns", 2000.0)
