"""An attribute that DistributedDataParallel lacks is not looked up on the wrapped module."""

# shows: DDP-040 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    return DistributedDataParallel(torch.nn.Linear(3, 1)).in_features


judge(train, "missing attributes come from the wrapped module", 3, world=1)
