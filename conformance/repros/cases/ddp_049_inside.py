"""A module that calls backward on its loss by itself gets the gradients of each rank by itself."""

# shows: DDP-049 test_gradients_of_a_backward_inside_the_forward_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class LosingInside(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1, bias=False)

    def forward(self, batch):
        loss = self.layer(batch).sum()
        loss.backward()
        return loss.detach()


def train(rank):
    model = DistributedDataParallel(LosingInside())
    try:
        model(torch.tensor([[1.0 + rank]]))
    except RuntimeError:
        return "the mean, or an error"
    gradient = model.module.layer.weight.grad.item()
    return "the mean, or an error" if gradient == 1.5 else gradient


judge(train, "gradients are the mean over the ranks, or the forward is refused", "the mean, or an error")
