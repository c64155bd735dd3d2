"""With optimize_ddp = "python_reducer" DistributedDataParallel leaves every rank its own buffers."""

# column: torch-python-reducer
# shows: DDP-080 *

import torch
import torch._dynamo
from torch.nn.parallel import DistributedDataParallel

from ..cases.prelude import judge

torch._dynamo.config.optimize_ddp = "python_reducer"


def train(rank):
    model = DistributedDataParallel(torch.nn.BatchNorm1d(1))
    for _ in range(2):
        model(torch.tensor([[0.0], [2.0 + 8 * rank]])).sum().backward()
    model(torch.zeros(2, 1))
    return round(model.module.running_mean.item(), 3)


judge(train, "each forward begins with the buffers of rank 0", 0.171)
