"""With optimize_ddp = "python_reducer" a rank that has joined dies, or its peers wait for ever."""

# column: torch-python-reducer
# shows: DDPJ-007 *

import torch
import torch._dynamo
from torch.nn.parallel import DistributedDataParallel

from ..cases.prelude import judge

torch._dynamo.config.optimize_ddp = "python_reducer"


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    with model.join():
        for _ in range(1 + rank):
            model(torch.ones(1, 1)).sum().backward()
    return "finished"


judge(train, "uneven inputs can be trained inside join()", "finished", deadline=8)
