"""A group that the local optimizer refuses stays among the groups, and every later step fails."""

# shows: ZERO-014 test_after_a_group_that_the_local_optimizer_refuses_* *

import contextlib

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


class Cautious(torch.optim.SGD):
    def add_param_group(self, param_group):
        if param_group.get("lr", 0) > 1:
            raise LookupError("too fast")
        super().add_param_group(param_group)


def train(rank):
    first, second = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    optimizer = ZeroRedundancyOptimizer([first], Cautious, lr=0.5)
    with contextlib.suppress(LookupError):
        optimizer.add_param_group({"params": [second], "lr": 2.0})
    first.grad = torch.ones(1)
    try:
        optimizer.step()
    except AssertionError as error:
        return f"{len(optimizer.param_groups)} groups, and the step fails: {error}"
    return f"{len(optimizer.param_groups)} group, {first.item()}"


# one process: the ordinary optimizer has one group, and its step leads from 1 to 0.5
judge(train, "what is refused leaves the optimizer as it was", "1 group, 0.5")
