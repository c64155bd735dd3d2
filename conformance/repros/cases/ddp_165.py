"""A built-in hook keeps the group that its model had when it was registered: it waits for ranks that left."""

# shows: DDP-165 *

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    model._update_process_group(dist.new_group([0]))
    if rank == 0:
        model(torch.full((1, 1), 4.0)).sum().backward()
        return f"gradient {model.module.weight.grad.item()}"
    return "gradient 4.0"  # this rank has left


judge(train, "the model trains on in its new group, here of rank 0 alone", "gradient 4.0")
