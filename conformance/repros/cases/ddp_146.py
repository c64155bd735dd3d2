"""With TORCH_DISTRIBUTED_DEBUG=DETAIL building a DistributedDataParallel ends in a segmentation fault."""

# shows: DDP-146 *

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    group = dist.new_group()  # a group that knows the debug level
    model = DistributedDataParallel(torch.nn.Linear(1, 1), process_group=group)
    model(torch.ones(1, 1)).sum().backward()
    return "trained"


judge(train, "DETAIL adds checks and names to errors", "trained")
