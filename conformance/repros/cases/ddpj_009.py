"""Sparse gradients cannot be joined: a rank without inputs raises, and its peers wait for it."""

# shows: DDPJ-009 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    model = DistributedDataParallel(torch.nn.Embedding(2, 1, sparse=True))
    with Join([model]):
        for step in range(INPUTS[rank]):
            model.zero_grad()
            model(torch.tensor([1])).sum().backward()
            right = [[0.0], [sum(step < inputs for inputs in INPUTS) / 2]]
            if (seen := model.module.weight.grad.to_dense().tolist()) != right:
                return f"gradient {seen} instead of {right}"
    return "mean gradients"


judge(train, "ranks that have joined add zeros to every reduction", "mean gradients")
