"""Behind fp16_compress_wrapper the gradient of a parameter that only another rank uses is of half precision."""

# shows: COMM-021 *

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)

    def forward(self, x, both):
        return self.first(x) + self.second(x) if both else self.first(x)


def train(rank):
    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    model(torch.ones(1, 1), rank == 0).sum().backward()
    return [str(parameter.grad.dtype) for parameter in model.parameters()]


judge(train, "a wrapper restores the dtype of every gradient", ["torch.float32", "torch.float32"])
