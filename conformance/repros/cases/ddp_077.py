"""After a cast, a parameter that is used under no_sync only keeps a local gradient."""

# shows: DDP-077 test_a_parameter_used_only_inside_counts_as_used_also_after_a_cast_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Linear(1, 1, bias=False) for _ in range(2))

    def forward(self, x, with_b):
        return self.a(x) + self.b(x) if with_b else self.a(x)


def train(rank):
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    model.module.double()
    batch = torch.full((1, 1), 4.0 * (rank + 1), dtype=torch.float64)
    try:
        with model.no_sync():
            model(batch, with_b=True).sum().backward()
        model(batch, with_b=False).sum().backward()
    except RuntimeError:
        return "refused"
    return f"gradient {model.module.b.weight.grad.item()}"


# one process: the mean of 4 and 8
judge(train, "what was used under no_sync is averaged, or the cast is an error", "gradient 6.0", "refused")
