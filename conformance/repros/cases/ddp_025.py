"""A model with an expanded buffer cannot be wrapped."""

# shows: DDP-025 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = torch.nn.Linear(1, 1)
    model.register_buffer("mask", torch.full((1,), 1.0 + rank).expand(3))
    return DistributedDataParallel(model).module.mask.tolist()


judge(train, "buffers start equal to those of rank 0", [1.0, 1.0, 1.0])
