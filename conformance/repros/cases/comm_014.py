"""A hook's result that is longer than the bucket is taken without a word."""

# shows: COMM-014 * too long

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def too_long(state, bucket):
    future = torch.futures.Future()
    future.set_result(torch.cat([bucket.buffer(), bucket.buffer()]))
    return future


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    model.register_comm_hook(None, too_long)
    try:
        model(torch.ones(1, 1)).sum().backward()
    except RuntimeError:
        return "refused"
    return "accepted"


judge(train, "the future holds one tensor of the bucket's shape", "refused", world=1)
