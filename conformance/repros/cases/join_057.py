"""A rank that ends inside a Join block without a word is named by nobody: its peer has the error of a connection."""

# shows: JOIN-057 *

import os

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    try:
        with Join([model]):
            if rank == 0:
                os._exit(1)
            model(torch.ones(1, 1)).sum().backward()
    except RuntimeError as error:
        return "told that rank 0 has gone" if "rank 0" in str(error) else f"ended by {error}"
    return "trained on"


judge(train, "peers are told which rank has gone", "died with exit code 1", "told that rank 0 has gone")
