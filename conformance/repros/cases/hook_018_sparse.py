"""The hooks never step a parameter whose gradients are sparse, without a word."""

# shows: HOOK-018 test_sparse_tables_*

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Looking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.full((2, 1), 2.0), freeze=False, sparse=True)
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, rows):
        return self.table(rows) * self.scale


def train(rank):
    # the hooks refuse Gloo by its name, so here it has another
    dist.Backend.register_backend("renamed", dist.ProcessGroupGloo, devices=["cpu"])
    group = dist.new_group(backend="renamed")
    model = DistributedDataParallel(Looking(), process_group=group, bucket_cap_mb=1e-6)
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, group, overlap_with_ddp=True, lr=0.25)
    model.register_comm_hook(group, hook_with_zero_step(allreduce_hook, model, zero))
    for _ in range(4):  # the first ones may be without effect, as documented
        model.zero_grad()
        model(torch.tensor([0])).sum().backward()
    return "stepped" if model.module.table.weight[0].item() != 2 else "where it was, after four iterations"


judge(train, "the row that every iteration looks up is stepped", "stepped")
