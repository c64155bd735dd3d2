"""A parameter whose data are laid out in another way since the model was wrapped gets a scrambled gradient."""

# shows: DDP-049 test_parameters_that_are_laid_out_anew_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layer = torch.nn.Linear(2, 2, bias=False)
    model = DistributedDataParallel(layer)
    layer.weight.data = layer.weight.data.t().contiguous().t()  # the same numbers, column by column
    model(torch.tensor([[1.0, 2.0]])).sum().backward()
    return layer.weight.grad.tolist()


# every output adds the inputs to its row of weights
judge(train, "gradients are the mean over the ranks", [[1.0, 2.0], [1.0, 2.0]])
