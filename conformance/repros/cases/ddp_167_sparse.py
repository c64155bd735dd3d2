"""In the Python-reducer mode a sparse gradient cannot be averaged: backward raises."""

# shows: DDP-167 test_the_python_reducer_averages_sparse_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    torch._dynamo.config.optimize_ddp = "python_reducer"
    model = DistributedDataParallel(torch.nn.Embedding(3, 1, sparse=True))
    if not getattr(model, "_use_python_reducer", False):
        model._register_accum_grad_hook()
    model(torch.tensor([rank])).sum().backward()
    return model.module.weight.grad.to_dense().flatten().tolist()


judge(train, "sparse gradients are averaged", [0.5, 0.5, 0.0])
