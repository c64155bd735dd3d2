"""A model that has no buffer when it is wrapped keeps its ranks' own once it is given one."""

# shows: DDP-080 test_the_first_buffer_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Remembering(torch.nn.Linear):
    def __init__(self):
        super().__init__(1, 1)
        self.register_buffer("first", None)

    def forward(self, batch):
        self.first = batch.mean() if self.first is None else self.first
        return super().forward(batch - self.first)


def train(rank):
    model = DistributedDataParallel(Remembering())
    for _ in range(3):
        model(torch.full((1, 1), rank + 1.0)).sum().backward()
    return model.module.first.item()


judge(train, "every training forward begins with the buffers of rank 0", 1.0)
