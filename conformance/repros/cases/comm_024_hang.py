"""Without a state the all-reduce hook waits for ranks outside of the group of its DDP."""

# shows: COMM-024 test_without_a_state_a_hook_does_not_wait_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    alone = dist.new_group([0])
    if rank == 1:
        return "gradient 4.0"  # has no part in it
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), process_group=alone)
    model.register_comm_hook(None, allreduce_hook)
    model(torch.full((1, 1), 4.0)).sum().backward()
    return f"gradient {model.module.weight.grad.item()}"


judge(train, "a model on a group of one rank needs no other rank", "gradient 4.0")
