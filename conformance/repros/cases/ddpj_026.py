"""A buffer hook that runs after the forward is not followed by ranks that have joined, nor refused."""

# shows: DDPJ-026 *

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _BufferCommHookLocation

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def average(state, buffers):
    return [dist.all_reduce(buffer, async_op=True).get_future() for buffer in buffers.values()]


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False), torch.nn.BatchNorm1d(2, affine=False))
    model = DistributedDataParallel(layers)
    model._register_buffer_comm_hook(None, average, _BufferCommHookLocation.POST_FORWARD)
    try:
        with Join([model]):
            for _ in range(INPUTS[rank]):
                model(torch.ones(2, 1)).sum().backward()
    except (NotImplementedError, ValueError) as error:
        return "refused" if "buffer" in str(error).lower() else str(error)
    return "ended"


judge(train, "ranks that have joined shadow all collectives of the others", "ended", "refused")
