"""Two models in one Join, the second run first: joined ranks follow the list, not the passes."""

# shows: JOIN-040 test_neither_*

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 2)  # how many batches each rank has


def train(rank):
    models = [DistributedDataParallel(torch.nn.Linear(inputs, 1, bias=False)) for inputs in (1, 3)]
    seen = []
    with Join(models):
        for _ in range(INPUTS[rank]):
            losses = [model(torch.full((1, model.module.in_features), 2.0)).sum() for model in reversed(models)]
            for model, loss in zip(models, reversed(losses), strict=True):
                model.zero_grad()
                loss.backward()
            seen += [model.module.weight.grad[0].tolist() for model in models]
    right = [[2.0 * sum(step < n for n in INPUTS) / 2] * size for step in range(INPUTS[rank]) for size in (1, 3)]
    return "mean gradients" if seen == right else f"gradients {seen} instead of {right}"


judge(train, "no further change to the training loop is needed", "mean gradients")
