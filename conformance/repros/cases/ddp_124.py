"""Right after backward delayed gradients may still be local: nobody waits for their reduction."""

# shows: DDP-124 *

import time

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def wait(gradient):
    time.sleep(1)


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(3)])
    for layer in layers:
        layer.weight.data.fill_(1.0)
    # the first layer is left out, so that it can trigger the delayed reduction after all others
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(layers, ["0.weight"])
    delayed = {"delay_all_reduce_named_params": [("1.weight", layers[1].weight)]}
    model = DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight, **delayed)
    if rank == 1:  # this rank's delayed reduction starts late
        layers[0].register_forward_hook(lambda layer, inputs, output: output.register_hook(wait) and None)
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    return layers[1].weight.grad.item()


# one process: the mean of 4 and 8
judge(train, "gradients are averaged when backward returns", 6.0)
