"""Of two contexts that are built before the first is entered, both divide as the second was asked to."""

# shows: DDPJ-012 test_contexts_that_are_built_ahead_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    model, seen = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False)), []
    for context in [model.join(divide_by_initial_world_size=divide) for divide in (False, True)]:
        with context:
            for _ in range(INPUTS[rank]):
                model.zero_grad()
                model(torch.full((1, 1), 4.0)).sum().backward()
                seen.append(model.module.weight.grad.item())
    # one rank has a gradient of 4: divided by the active ranks, then by all
    return "gradients of 4.0 and 2.0" if seen == [4.0, 2.0] * INPUTS[rank] else f"gradients: {seen}"


judge(train, "each context divides as it was asked to", "gradients of 4.0 and 2.0")
