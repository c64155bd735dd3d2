"""A sparse table in front of another model: the gradient of the layer beside it is divided twice, silently."""

# shows: DDP-057 test_a_table_in_front_of_another_model_*

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from .prelude import judge


class First(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4, bias=False)
        self.table = torch.nn.Embedding(4, 4, sparse=True)

    def forward(self, x, rows):
        return self.linear(x) + self.table(rows)


def train(rank):
    second = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.constant_(second.weight, 0.25)
    first, second = DDP(First()), DDP(second)
    second(first(torch.ones(1, 4), torch.tensor([rank]))).sum().backward()
    return first.module.linear.weight.grad.tolist()


judge(train, "the mean gradient over the ranks", [[1.0] * 4] * 4)
