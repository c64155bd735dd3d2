"""Leaving a Join context changes the warning filters of the whole process, for good."""

# shows: JOIN-037 *

import warnings

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model, before = DistributedDataParallel(torch.nn.Linear(1, 1)), len(warnings.filters)
    with Join([model]):
        pass
    return f"filters added: {[kind for kind, *_ in warnings.filters[: len(warnings.filters) - before]]}"


judge(train, "a context leaves nothing behind", "filters added: []", world=1)
