"""Two ranks that trained apart, one further than the other, are moved to one group: their buckets do not fit."""

# shows: DDP-162 *
# shows: DDP-164 *

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


def train(rank):
    alone = [dist.new_group([each]) for each in range(2)][rank]
    layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(2)])
    model = DistributedDataParallel(layers, process_group=alone, bucket_cap_mb=1e-6)
    for _ in range(3 if rank == 0 else 1):  # so that buckets are rebuilt on rank 0 only
        model(torch.ones(1, 4)).sum().backward()
    model._update_process_group(dist.group.WORLD)
    model(torch.ones(1, 4)).sum().backward()
    return "trained"


judge(train, "after a move buckets are agreed anew, and all ranks train", "trained")
