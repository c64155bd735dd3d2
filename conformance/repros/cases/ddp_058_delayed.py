"""A frozen parameter among the delayed ones gets a gradient of zeros, and the optimizer's weight decay changes it."""

# shows: DDP-058 test_a_delayed_parameter_that_is_frozen_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(_rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(3)])
    torch.nn.init.constant_(layers[2].weight, 1.0)
    layers[2].weight.requires_grad_(False)
    model = DistributedDataParallel(
        layers,
        delay_all_reduce_named_params=[(name, layers.get_parameter(name)) for name in ("1.weight", "2.weight")],
        param_to_hook_all_reduce=layers[0].weight,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.5)
    optimizer.zero_grad()
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    return layers[2].weight.item()


judge(train, "a frozen parameter stays as it is", 1.0)
