"""A loss of gradients that leaves a weight out is not reduced, though unused parameters are looked for."""

# shows: DDP-065 test_where_use_is_searched_a_loss_of_gradients_*
# shows: DDP-101 test_where_use_is_searched_a_loss_of_gradients_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    layer = torch.nn.Linear(1, 1)
    model = DistributedDataParallel(layer, find_unused_parameters=True)
    for _ in range(2):
        model.zero_grad()
        x = torch.full((1, 1), 2.0 * (rank + 1), requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)  # depends on the weight, not on the bias
        try:
            ((rank + 1) * slope.sum()).backward()
        except RuntimeError as error:
            return f"RuntimeError: {error}"
    return [layer.weight.grad.item(), layer.bias.grad]


judge(train, "the weight's gradient is the average, the bias has none", [1.5, None])
