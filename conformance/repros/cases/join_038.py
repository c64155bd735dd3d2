"""After a Join context a model behaves as in one: a rank that trains on alone waits for the others."""

# shows: JOIN-038 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    with Join([model]):
        model(torch.ones(1, 1)).sum().backward()
    if rank == 0:
        with model.no_sync():  # needs no other rank, and needed none before the context
            model(torch.ones(1, 1)).sum().backward()
    return "ended"


judge(train, "what Join enables ends with its block", "ended")
