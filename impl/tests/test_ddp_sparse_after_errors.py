"""Sparse gradients of a backward that failed before they were sent do not travel with those of the next one."""

import pytest
import torch
from torch import nn

from impl import DistributedDataParallel

from .comm_hook_ranks import run_on_ranks

pytestmark = pytest.mark.slow


class Behind(nn.Module):
    """A sparse table whose gradient comes before that of a layer; ``fails``: before which of both backward fails."""

    fails = None

    def __init__(self):
        super().__init__()
        self.layer, self.table = nn.Linear(1, 1, bias=False), nn.Embedding(4, 1, sparse=True)

    def forward(self, x):
        outputs = self.layer(x), x * self.table(torch.ones(1, dtype=torch.long))
        if self.fails is not None:
            outputs[self.fails].register_hook(fail)
        return sum(outputs)


def fail(_gradient):
    raise KeyError("spilled")


def fail_here_and_there(rank, world):
    model, told = DistributedDataParallel(Behind()), []
    for iteration in range(6):
        model.module.fails = min(rank, 1) if iteration == 3 else None
        model.zero_grad()
        loss = model(torch.full((1, 1), rank + 1.0)).sum()
        if iteration == 3:
            with pytest.raises(KeyError):
                loss.backward()
            continue
        loss.backward()
        told.append([parameter.grad.to_dense().flatten().tolist() for parameter in model.parameters()])
    return told


def test_after_a_backward_that_failed_on_each_rank_at_its_own_place_rows_are_averaged_as_before():
    assert run_on_ranks(fail_here_and_there, 2) == [[[[1.5], [0.0, 1.5, 0.0, 0.0]]] * 5] * 2
