"""In a join context the last backward of the last rank leaves a layer out: no error names it, and a process dies."""

# shows: DDP-062 test_a_last_backward_that_leaves_a_layer_out_*

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x, leaves_out):
        return self.second(x) if leaves_out else self.first(x) + self.second(x)


def reduced(_state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])


def train(rank):
    model = DistributedDataParallel(Two(), bucket_cap_mb=1e-5)
    model.register_comm_hook(None, reduced)
    try:
        with model.join():
            for iteration in range(5 if rank else 3):
                model(torch.ones(2, 4), iteration == 4).sum().backward()
    except RuntimeError as error:
        return "find_unused_parameters" in str(error) or not rank
    return False


judge(train, "an error on every rank, which names the remedy on the one that left the layer out", True)
