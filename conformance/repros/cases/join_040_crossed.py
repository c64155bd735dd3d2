"""Ranks that run the two models of one Join in different orders are not told: the models' gradients are mixed."""

# shows: JOIN-040 test_ranks_that_run_two_models_*
# shows: JOIN-040 test_ranks_that_run_a_model_*

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    models = [DistributedDataParallel(torch.nn.Linear(1, 1, bias=False)) for _ in range(2)]
    factors = (1.0, 100.0)  # the gradient of each model, alike on all ranks
    try:
        with Join(models):
            for number in (0, 1) if rank else (1, 0):
                models[number](torch.full((1, 1), factors[number])).sum().backward()
    except RuntimeError:
        return "an error"
    found = [model.module.weight.grad.item() for model in models]
    return f"gradients {found} where every rank has {list(factors)}"


judge(train, "ranks that still have inputs and are at different places are told so", "an error")
