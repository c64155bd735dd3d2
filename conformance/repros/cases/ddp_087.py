"""A buffer that torch has marked as conjugate stays local."""

# shows: DDP-087 test_marked_numbers_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Turning(torch.nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.register_buffer("turn", torch.tensor([complex(rank, 1.0)]).conj())

    def forward(self, batch):
        return self.layer(batch)


def train(rank):
    model = DistributedDataParallel(Turning(rank))
    model(torch.ones(1, 1))
    return f"buffer {model.module.turn.item()}"


judge(train, "buffers are those of rank 0", f"buffer {complex(0.0, -1.0)}")
