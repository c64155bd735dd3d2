"""Behind a context that one rank has left by an exception, its next gradients are mixed with its peers' last ones."""

# shows: JOIN-024 test_what_comes_behind_a_failed_context_*

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))

    def iteration(number, fails=False):
        model.zero_grad()
        loss = model(torch.full((1, 1), 10.0**number)).sum()
        if fails:
            raise KeyError("a bad label")
        loss.backward()
        return model.module.weight.grad.item()

    try:
        with Join([model]):
            for number in range(3):
                iteration(number, fails=number == 2 and rank == 0)
    except (KeyError, RuntimeError):
        pass  # the programs of both go on
    return iteration(3)


judge(train, "both ranks average the gradients of one iteration", 1000.0)
