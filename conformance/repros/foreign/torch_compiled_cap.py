"""A compiled DistributedDataParallel with a bucket_cap_mb below one MiB ends in an AssertionError of the compiler."""

# column: torch-compiled
# shows: DDP-004 *

import torch
import torch._dynamo
from torch.nn.parallel import DistributedDataParallel

from ..cases.prelude import judge


def train(rank):
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), bucket_cap_mb=0.5)
    compiled = torch.compile(model, backend="aot_eager")
    compiled(torch.full((1, 1), 1.0 + 2 * rank)).sum().backward()
    return model.module.weight.grad.item()


judge(train, "buckets may have any size, and a model of small buckets is trained", 2.0)
