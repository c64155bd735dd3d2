"""Delayed parameters of different shape are not refused: of the larger one a part keeps what lay in memory."""

# shows: DDP-029 test_what_is_delayed_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1 + rank))
    delayed = {"delay_all_reduce_named_params": list(layers[1].named_parameters(prefix="1"))}
    try:
        DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **delayed)
    except (RuntimeError, ValueError) as error:
        return "refused" if "param" in str(error) else str(error)
    return "accepted"


judge(train, "all ranks must have the same parameters, which DDP verifies", "refused")
