"""An evaluation under no_grad inside a Join context leaves ranks that have joined waiting for a reduction."""

# shows: DDPJ-038 *
# shows: JOIN-054 test_an_evaluation_*

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
            model(torch.full((1, 1), 2.0)).sum().backward()
            seen.append(model.module.weight.grad.item())
            with torch.no_grad():
                model(torch.full((1, 1), 2.0))
    # one process: the mean over all ranks, to which a rank without inputs adds zero
    right = [2.0 * sum(step < inputs for inputs in INPUTS) / 2 for step in range(INPUTS[rank])]
    return "mean gradients" if seen == right else f"gradients {seen} instead of {right}"


judge(train, "no further change to the training loop is needed", "mean gradients")
