"""Whoever keeps only the loss, and not the wrapped model, gets the gradients of each rank by itself."""

# shows: DDP-049 test_gradients_of_a_model_that_is_dropped_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def loss_of(layer, batch):
    return DistributedDataParallel(layer)(batch).sum()


def train(rank):
    layer = torch.nn.Linear(1, 1, bias=False)
    try:
        loss_of(layer, torch.tensor([[1.0 + rank]])).backward()
    except RuntimeError:
        return "the mean, or an error"
    return "the mean, or an error" if layer.weight.grad.item() == 1.5 else layer.weight.grad.item()


judge(train, "gradients are the mean over the ranks, or the backward is refused", "the mean, or an error")
