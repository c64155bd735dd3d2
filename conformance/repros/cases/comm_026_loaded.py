"""PowerSGD cannot go on from a saved state: errors are kept by the number of a bucket, and buckets are others."""

# shows: COMM-026 test_what_one_parameter_has_lost_* starts again, in several buckets
# shows: COMM-027 test_what_one_parameter_has_lost_* starts again, in several buckets

import pickle

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class FromTheFront(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = (torch.nn.Parameter(torch.zeros(8, 8)) for _ in range(2))

    def forward(self, x):
        last = (self.other * x).sum()
        return last + (self.one * x + 0 * last).sum()


def train(rank):
    state = PowerSGDState(dist.group.WORLD, start_powerSGD_iter=2)
    for _ in range(2):
        model = DistributedDataParallel(FromTheFront(), bucket_cap_mb=1e-5)
        model.register_comm_hook(state, powerSGD_hook)
        for iteration in range(5):
            model(torch.ones(8, 8) * (rank + iteration)).backward()
        state = pickle.loads(pickle.dumps(state))
    return "goes on"


judge(train, "a hook goes on from the state that it has saved", "goes on")
