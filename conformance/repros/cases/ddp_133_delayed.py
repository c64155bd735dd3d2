"""A fused optimizer that is given delayed parameters never steps them."""

# shows: DDP-133 test_a_fused_optimizer_with_delayed_parameters_* *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    for parameter in layers.parameters():
        torch.nn.init.ones_(parameter)
    late = [("1.weight", layers[1].weight)]
    model = DistributedDataParallel(
        layers, delay_all_reduce_named_params=late, param_to_hook_all_reduce=layers[0].weight
    )
    try:
        model._register_fused_optim(torch.optim.SGD, lr=1.0, optim_params=list(model.parameters()))
    except RuntimeError:
        return "refused"
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    return str([parameter.item() for parameter in model.parameters()])


# one process: both gradients are the mean of 4 and 8
judge(train, "the optimizer steps what it was given, or is refused", "[-5.0, -5.0]", "refused")
