"""What a local optimizer counts in a group is not saved by a target that owns nothing of that group."""

# shows: ZERO-016 test_what_is_counted_in_a_group_is_saved_*

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from .prelude import judge


class Skipping(torch.optim.SGD):
    """Counts its steps in each group but those without parameters, as fused optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            if group["params"]:
                group["step"] = group.get("step", 0) + 1
        return super().step(closure)


def train(rank):
    weights = [torch.nn.Parameter(torch.zeros(size)) for size in (3, 2)]
    zero = ZeroRedundancyOptimizer([{"params": [weight]} for weight in weights], Skipping, lr=1.0)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        zero.step()
    zero.consolidate_state_dict()
    if rank:
        return "steps: None"
    return f"steps: {[group.get('step') for group in zero.state_dict()['param_groups']]}"


judge(train, "each group has been stepped twice", "steps: [2, 2]", "steps: None")
