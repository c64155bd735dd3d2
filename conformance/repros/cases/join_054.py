"""Two forwards before one backward in Join: ranks that have joined take each forward for a whole iteration."""

# shows: JOIN-054 test_*forwards_*

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    seen = []
    with Join([model]):
        for _ in range(INPUTS[rank]):
            model.zero_grad()
            batch = torch.full((1, 1), 2.0)
            (model(batch) + model(batch)).sum().backward()
            seen.append(model.module.weight.grad.item())
    # one process: twice the mean over all ranks, to which a rank without inputs adds zero
    right = [2 * 2.0 * sum(step < inputs for inputs in INPUTS) / 2 for step in range(INPUTS[rank])]
    return "mean gradients" if seen == right else f"gradients {seen} instead of {right}"


judge(train, "no further change to the training loop is needed", "mean gradients")
