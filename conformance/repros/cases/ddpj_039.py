"""Delayed parameters are neither followed by ranks that have joined nor refused."""

# shows: DDPJ-039 *

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge

INPUTS = (0, 1)  # how many batches each rank has


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Linear(2, 1))
    delayed = [("1.weight", layers[1].weight), ("1.bias", layers[1].bias)]
    options = {"delay_all_reduce_named_params": delayed, "param_to_hook_all_reduce": layers[0].weight}
    model = DistributedDataParallel(layers, **options)
    try:
        with Join([model]):
            for _ in range(INPUTS[rank]):
                model(torch.ones(1, 1)).sum().backward()
    except (NotImplementedError, ValueError) as error:
        return "refused" if "delay" in str(error).lower() else str(error)
    return "ended"


judge(train, "ranks that have joined shadow all collectives of the others", "ended", "refused")
