"""Under no_sync the second forward rebuilds the buckets: a rank that accumulates alone waits for the others."""

# shows: DDP-072 test_one_rank_may_*

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    begun = time.monotonic()
    if rank == 1:
        with model.no_sync():
            model(torch.ones(1, 1)).sum().backward()
    else:
        time.sleep(4)
    waited = rank == 1 and time.monotonic() - begun > 3
    model(torch.ones(1, 1)).sum().backward()
    return "waited" if waited else "went on"


judge(train, "inside no_sync a rank accumulates and needs no other", "went on")
