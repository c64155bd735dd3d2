"""A rank that leaves a Join block by an exception tells nobody: its peers wait until the group times out."""

# shows: JOIN-024 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    try:
        with Join([model]):
            if rank == 0:
                raise LookupError("the data loader failed")
            model(torch.ones(1, 1)).sum().backward()
    except (LookupError, RuntimeError) as error:
        return "ended, knowing of the failed loader" if "the data loader failed" in str(error) else f"ended by {error}"
    return "trained on"


judge(train, "no rank waits for a rank that will not come", "ended, knowing of the failed loader")
