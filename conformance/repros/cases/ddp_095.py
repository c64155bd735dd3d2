"""In the Python-reducer mode backward returns before the futures of a buffer hook are done."""

# shows: DDP-095 test_the_python_reducer_waits_for_*

import threading
import time

import torch
from torch._dynamo import config
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
        buffers["count"].fill_(1000)
        future.set_result(None)

    threading.Thread(target=end).start()
    return [future]


def train(_rank):
    with config.patch(optimize_ddp="python_reducer"):
        model = DistributedDataParallel(Counting())
    model._register_buffer_comm_hook(None, hook)
    model(torch.ones(1, 1)).sum().backward()
    return model.module.count.item()


judge(train, "what a buffer hook's future does has happened when backward returns", 1000.0)
