"""A sparse embedding whose weight a linear layer shares has a dense gradient, which DDP refuses in backward."""

# shows: DDP-056 test_a_table_that_a_layer_shares_*

import torch
from torch.nn.parallel import DistributedDataParallel

from .prelude import judge


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(2, 1, sparse=True)
        self.out = torch.nn.Linear(1, 2, bias=False)
        self.out.weight = self.table.weight
        torch.nn.init.constant_(self.table.weight, 1.0)

    def forward(self, rows):
        return self.out(self.table(rows))


def train(rank):
    model = DistributedDataParallel(Tied())
    # each row feeds the layer once (+1), and the row that is looked up is fed by both of the layer's rows (+2)
    model(torch.tensor([0])).sum().backward()
    gradient = model.module.table.weight.grad
    return (gradient.to_dense() if gradient.is_sparse else gradient).flatten().tolist()


judge(train, "a shared parameter's gradient contributions add up and are averaged once", [3.0, 1.0])
