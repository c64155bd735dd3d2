"""With optimize_ddp = "python_reducer" sparse gradients end in an error of memory formats."""

# column: torch-python-reducer
# shows: DDP-057 *

import torch
import torch._dynamo
from torch.nn.parallel import DistributedDataParallel

from ..cases.prelude import judge

torch._dynamo.config.optimize_ddp = "python_reducer"


def train(rank):
    model = DistributedDataParallel(torch.nn.Embedding(2, 1, sparse=True))
    model(torch.tensor([rank])).sum().backward()
    return model.module.weight.grad.to_dense().flatten().tolist()


judge(train, "gradients of sparse embeddings are averaged", [0.5, 0.5])
