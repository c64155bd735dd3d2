"""A rank whose buffer has another size than on rank 0 goes on with buffers that are not rank 0's, and no error."""

# shows: DDP-080 test_buffers_of_another_size_*
# shows: DDP-080 test_a_buffer_that_is_made_once_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Caching(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        self.register_buffer("cache", torch.zeros(2))
        self.register_buffer("behind", torch.zeros(1))

    def forward(self, batch):
        self.cache = torch.zeros(len(batch))
        return super().forward(batch)


def train(rank):
    model = DistributedDataParallel(Caching())
    model(torch.ones(2 + 2 * rank, 1)).sum().backward()
    model.module.behind.fill_(rank)
    try:
        model(torch.ones(2, 1)).sum()
    except RuntimeError:
        return "an error"
    return model.module.behind.item()


judge(train, "every training forward begins with the buffers of rank 0", 0.0, "an error")
