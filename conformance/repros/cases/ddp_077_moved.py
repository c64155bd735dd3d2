"""After a move to another group, a parameter that was used under no_sync only keeps a local gradient."""

# shows: DDP-077 test_a_parameter_used_only_inside_counts_as_used_also_after_a_move_*

import torch
import torch.distributed as dist
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
    batch = torch.full((1, 1), 4.0 * (rank + 1))
    with model.no_sync():
        model(batch, with_b=True).sum().backward()
    model._update_process_group(dist.new_group([0, 1]))
    model(batch, with_b=False).sum().backward()
    return f"gradient {model.module.b.weight.grad.item()}"


# one process: the mean of 4 and 8
judge(train, "what was used under no_sync is averaged", "gradient 6.0")
