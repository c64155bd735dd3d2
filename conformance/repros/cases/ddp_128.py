"""The gradient of a delayed parameter of the root module is reduced twice, and comes out wrong."""

# shows: DDP-128 *

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Root(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.scale = torch.nn.Linear(1, 1, bias=False), torch.nn.Parameter(torch.ones(1))
        self.first.weight.data.fill_(1.0)

    def forward(self, batch):
        return self.first(batch) * self.scale


def train(rank):
    root, reduced = Root(), []
    delayed = {"delay_all_reduce_named_params": [("scale", root.scale)], "param_to_hook_all_reduce": root.first.weight}
    model = DistributedDataParallel(root, **delayed)
    model.register_comm_hook(None, lambda _, bucket: reduced.append(bucket.buffer().numel()) or done(bucket.buffer()))
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    time.sleep(1)  # for the delayed reduction, which nobody waits for
    return f"delayed: {root.scale.grad.item()}, elements in buckets: {sum(reduced)}"


def done(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


judge(train, "delayed parameters are averaged once, outside of the buckets", "delayed: 6.0, elements in buckets: 1")
