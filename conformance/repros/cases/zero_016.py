"""What an optimizer's own state_dict adds is not in the consolidated state, which it then cannot load."""

# shows: ZERO-016 test_what_an_optimizer_saves_of_itself_*

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


class Counting(torch.optim.SGD):
    taken = 0

    def step(self, closure=None):
        self.taken += 1
        return super().step(closure)

    def state_dict(self):
        return {**super().state_dict(), "taken": self.taken}


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    zero = ZeroRedundancyOptimizer(weights, Counting, lr=1.0)
    for _ in range(3):
        zero.step()
    zero.consolidate_state_dict()
    saved = [zero.state_dict() if rank == 0 else None]
    dist.broadcast_object_list(saved)
    return f"steps saved: {saved[0].get('taken')}"


judge(train, "the consolidated state is that of the ordinary optimizer", "steps saved: 3")
