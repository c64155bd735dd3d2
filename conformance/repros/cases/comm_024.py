"""Without a state the all-reduce hook averages over the whole world, not over the group of its DDP."""

# shows: COMM-024 test_without_a_state_a_hook_averages_*
# shows: COMM-024 test_without_a_state_wrappers_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), process_group=alone)
    model.register_comm_hook(None, allreduce_hook)
    model(torch.full((1, 1), 4.0 * (rank + 1))).sum().backward()
    local = model.module.weight.grad.item() == 4.0 * (rank + 1)
    return "gradient of its group" if local else f"gradient {model.module.weight.grad.item()}"


judge(train, "a model on a group of one rank has that rank's gradients", "gradient of its group")
