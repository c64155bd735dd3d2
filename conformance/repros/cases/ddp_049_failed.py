"""Behind a backward that failed and was caught, a model that has a layer in common cannot go on."""

# shows: DDP-049 test_what_one_model_has_failed_in_*

from contextlib import suppress

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    shared, *own = (torch.nn.Linear(1, 1) for _ in range(3))
    torch.nn.init.ones_(own[1].weight)
    failed, other = (DistributedDataParallel(torch.nn.Sequential(shared, layer)) for layer in own)
    x = torch.full((1, 1), 4.0 * (rank + 1))
    own[0].weight.register_hook(lambda _: 1 / 0)
    with suppress(ZeroDivisionError):
        failed(x).sum().backward()
    for _ in range(2):
        other.zero_grad()
        other(x).sum().backward()
    return f"gradient {shared.weight.grad.item()}"


judge(train, "gradients are the mean over the ranks", "gradient 6.0")
