"""The sparse gradients of two tables whose rows are added up lie in one memory, which is divided twice."""

# shows: DDP-057 test_tables_whose_rows_are_added_up_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Added(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(3, 1, sparse=True)
        self.places = torch.nn.Embedding(3, 1, sparse=True)

    def forward(self, rows):
        return self.words(rows) + self.places(rows)


def train(rank):
    model = DistributedDataParallel(Added())
    (4 * model(torch.tensor([rank, 2]))).sum().backward()
    return [table.weight.grad.to_dense().flatten().tolist() for table in (model.module.words, model.module.places)]


# a row that one of both ranks looks up has half of its gradient, 4, and one that both do all of it
judge(train, "sparse gradients are averaged over the ranks", [[2.0, 2.0, 4.0]] * 2)
