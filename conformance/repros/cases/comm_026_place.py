"""PowerSGD starts with the factors that a bucket of this number had before: perhaps those of another weight."""

# shows: COMM-026 test_what_is_known_of_one_matrix_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class InEitherOrder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.zeros(8, 8) for _ in range(2))
        self.first = 0

    def forward(self, *fed):
        last = (self.weights[1 - self.first] * fed[1 - self.first]).sum()
        return last + (self.weights[self.first] * fed[self.first] + 0 * last).sum()


def train(_rank):
    fed = [torch.outer(torch.ones(8), torch.eye(8)[place]) for place in range(2)]  # of rank one
    state = PowerSGDState(None, start_powerSGD_iter=2, use_error_feedback=False, orthogonalization_epsilon=1e-8)
    model = DistributedDataParallel(InEitherOrder(), bucket_cap_mb=1e-4)
    model.register_comm_hook(state, powerSGD_hook)
    for iteration in range(7):
        if iteration == 5:
            model._update_process_group(dist.new_group([0]))
            model.module.first = 1
        model.zero_grad()
        model(*fed).backward()
    return "arrives" if all(map(torch.allclose, [each.grad for each in model.module.weights], fed)) else "is lost"


judge(train, "a matrix of rank one arrives as it is", "arrives", world=1)
