"""With gradient_as_bucket_view an old gradient of a parameter that no rank uses is averaged."""

# shows: DDP-100 test_an_old_gradient_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, bias=False)

    def forward(self, batch):
        return self.used(batch)


def train(rank):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True, gradient_as_bucket_view=True)
    model.module.unused.weight.grad = torch.full((1, 1), 7.0 + rank)
    model(torch.ones(1, 1)).sum().backward()
    gradient = model.module.unused.weight.grad.item()
    return "untouched" if gradient == 7.0 + rank else f"gradient {gradient} instead of {7.0 + rank}"


judge(train, "a parameter that no rank used keeps its gradient exactly as it was", "untouched")
