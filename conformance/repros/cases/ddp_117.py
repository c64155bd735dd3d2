"""A gradient that is a view of a bucket and is moved, as ``Module.to`` moves it, is soon no average any more."""

# shows: DDP-117 test_gradients_that_the_program_moves_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layer = torch.nn.Linear(2, 1, bias=False)
    model = DistributedDataParallel(layer, gradient_as_bucket_view=True)
    told = []
    for _ in range(3):
        model.zero_grad(set_to_none=False)
        model(torch.full((1, 2), 1.0 + 2 * rank)).sum().backward()
        told.append(layer.weight.grad.tolist())
        layer.weight.grad.data = layer.weight.grad.data.clone()
    return told


# the mean of 1 and 3
judge(train, "gradients are the mean over the ranks", [[[2.0, 2.0]]] * 3)
