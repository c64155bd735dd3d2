"""A shared parameter that is ignored by its first name is not broadcast, yet reduced by its second name."""

# shows: DDP-154 *

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1, bias=False) for _ in range(3)])
    for layer in layers:
        layer.weight.data.fill_(1.0 + rank)
    layers[1].weight = layers[0].weight
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(layers, ["0.weight"])
    model = DistributedDataParallel(layers)
    held = layers[0].weight.item()
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    local = torch.autograd.grad(layers(torch.full((1, 1), 4.0 * (rank + 1))).sum(), layers[0].weight)[0].item()
    reduced = layers[0].weight.grad.item() != local
    return "ignored" if held == 1.0 + rank and not reduced else "managed" if held == 1.0 and reduced else "half of each"


judge(train, "a parameter is either managed (broadcast and averaged) or ignored", "ignored", "managed")
