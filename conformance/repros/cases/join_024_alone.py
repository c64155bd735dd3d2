"""Behind an error of the communication hook, which the loop catches, every backward ends in an internal assertion."""

# shows: JOIN-024 test_who_is_alone_in_its_group_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model, seen = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False)), []

    def hook(state, bucket):
        if len(seen) == 1:
            raise KeyError("a disk that is full")
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, hook)
    with model.join():
        for _ in range(4):
            model.zero_grad()
            try:
                model(torch.ones(1, 1)).sum().backward()
                seen.append(model.module.weight.grad.item())
            except (KeyError, RuntimeError) as error:
                seen.append(type(error).__name__)
    return seen


judge(train, "the batch that failed is left out, and the others are trained on", [1.0, "KeyError", 1.0, 1.0], world=1)
