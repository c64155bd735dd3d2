"""With a static graph, what only a second backward of the same forward reaches keeps local gradients."""

# shows: DDP-106 test_a_second_backward_that_goes_further_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)

    def forward(self, x):
        return self.one(x), self.other(x)


def train(rank):
    model = DistributedDataParallel(Both(), static_graph=True)
    for _ in range(3):
        model.zero_grad()
        one, other = model(torch.full((1, 1), 1.0 + rank))
        one.backward(retain_graph=True)
        try:
            other.backward()
        except RuntimeError:
            return "refused"
    return model.module.other.weight.grad.item()


judge(train, "using a parameter that was unused in the first iteration raises in that backward", "refused")
