"""Of two models in one Join context only the first divides by the number of ranks that have inputs."""

# shows: DDPJ-015 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    models = [DistributedDataParallel(torch.nn.Linear(1, 1, bias=False)) for _ in range(2)]
    seen = []
    with Join(models, divide_by_initial_world_size=False):
        for _ in range(INPUTS[rank]):
            for model in models:
                model.zero_grad()
                model(torch.full((1, 1), 4.0)).sum().backward()
            seen.append([model.module.weight.grad.item() for model in models])
    # every gradient is 4, so their mean is
    return "mean gradients of 4.0" if seen == [[4.0, 4.0]] * INPUTS[rank] else f"gradients of the two models: {seen}"


judge(train, "gradients are divided by the number of ranks that have inputs", "mean gradients of 4.0")
