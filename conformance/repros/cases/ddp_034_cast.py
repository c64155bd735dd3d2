"""A model that was cast after it was wrapped is trained with local gradients, and nothing is said."""

# shows: DDP-034 test_a_model_that_was_cast_*
# shows: DDP-034 test_a_model_that_is_cast_inside_a_context_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False)).double()
    try:
        for _ in range(2):
            model.zero_grad()
            model(torch.full((1, 1), 4.0 * (rank + 1), dtype=torch.float64)).sum().backward()
    except RuntimeError:
        return "refused by the second step"
    return f"gradient {model.module.weight.grad.item()}"


judge(train, "gradients are averaged, or misuse is an error", "gradient 6.0", "refused by the second step")
