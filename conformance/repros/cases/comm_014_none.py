"""A hook that returns None instead of a future ends the process with a segmentation fault."""

# shows: COMM-014 * None

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    model.register_comm_hook(None, lambda state, bucket: None)
    try:
        model(torch.ones(1, 1)).sum().backward()
    except (RuntimeError, TypeError):
        return "refused"
    return "accepted"


judge(train, "a wrong result of a hook is an error", "refused", world=1)
