"""A parameter that was frozen when the model was wrapped, and is trained later, keeps local gradients, silently."""

# shows: DDP-049 test_what_was_frozen_when_the_model_was_wrapped_*
# shows: DDP-049 test_a_layer_of_two_models_that_was_frozen_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = torch.nn.Linear(1, 1)
    model.weight.requires_grad_(False)
    ddp = DistributedDataParallel(model)
    model.weight.requires_grad_(True)
    for _ in range(2):
        ddp.zero_grad()
        ddp(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    return f"gradient {model.weight.grad.item()}"


judge(train, "gradients are the mean over the ranks", "gradient 6.0")
