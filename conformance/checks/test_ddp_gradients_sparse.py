"""Sparse gradients where a loop is less plain: a table that a layer shares, a backward that failed, another group."""

import torch
import torch.distributed as dist
from torch import nn

from conformance import models, oracle
from conformance.checking import MANY, check
from conformance.ranks import caught
from conformance.subjects import Unsupported
from conformance.training import ddp, private


class Tied(nn.Module):
    """A sparse table whose weight is also that of a layer: its gradient is a dense one."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 2, sparse=True)
        nn.init.constant_(self.table.weight, 2.0)
        self.out = nn.Linear(2, 6, bias=False)
        self.out.weight = self.table.weight

    def forward(self, rows):
        return 3 * self.out(self.table(rows))


def weight_of(model):
    found = model.module.table.weight.grad
    return (found.to_dense() if found.is_sparse else found).flatten().tolist()


def train_tied(ctx):
    model = ddp(ctx, Tied().to(ctx.device))
    told = []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        model(models.rows(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append(weight_of(model))
    return told


@check("DDP-056", worlds=MANY, beyond=False)
def test_a_table_that_a_layer_shares_is_averaged_too(ranks):
    expected = []
    for iteration in range(3):
        found = [oracle.local_gradients(Tied(), models.rows(rank, iteration)) for rank in range(ranks.world)]
        expected.append((sum(each["table.weight"] for each in found) / ranks.world).flatten().tolist())
    assert ranks(train_tied) == [expected] * ranks.world


class Failing(nn.Module):
    """A layer before two sparse tables; the layer's backward, which comes last, fails when it is asked to."""

    def __init__(self, fails=False):
        super().__init__()
        self.first = models.scalar()
        self.tables = nn.ModuleList([nn.Embedding(6, 2, sparse=True) for _ in range(2)])
        self.fails = fails

    def forward(self, rows):
        before = self.first(torch.ones(1, 1, device=rows.device))
        if self.fails:
            before.register_hook(fail)
        return 12 * before * torch.stack([table(rows) for table in self.tables])


def fail(_gradient):
    raise KeyError("the backward of one iteration fails on every rank")


def fail_once(ctx):
    """Whether each backward failed, and the gradients after it."""
    model = ddp(ctx, models.drawn(Failing()).to(ctx.device), bucket_cap_mb=1e-6)
    told = []

    def forward(iteration):
        try:
            return model(models.rows(ctx.rank, iteration).to(ctx.device)).sum()
        except RuntimeError as error:
            if iteration > 3 and "finished reduction" in str(error):
                raise Unsupported("after a backward that failed, the next forward is refused") from error
            raise

    for iteration in range(5):
        model.zero_grad(set_to_none=True)
        model.module.fails = iteration == 3
        failed = caught(forward(iteration).backward) is not None
        told.append((failed, [None if failed else t.weight.grad.to_dense().tolist() for t in model.module.tables]))
    return told


@check("DDP-057", worlds=MANY, beyond=False)
def test_a_backward_that_failed_leaves_nothing_in_the_sparse_averages_after_it(ranks):
    model, expected = models.drawn(Failing()), []
    for iteration in range(5):
        found = [oracle.local_gradients(model, models.rows(rank, iteration)) for rank in range(ranks.world)]
        names = [f"tables.{place}.weight" for place in range(2)]
        means = [(sum(each[name].to_dense() for each in found) / ranks.world).tolist() for name in names]
        expected.append((iteration == 3, [None, None] if iteration == 3 else means))
    for rank, told in enumerate(ranks(fail_once)):
        for iteration, (failed, seen) in enumerate(told):
            assert failed == expected[iteration][0], f"rank {rank}, iteration {iteration}"
            for mine, mean in zip(seen, expected[iteration][1], strict=True):
                assert mean is None or torch.allclose(torch.tensor(mine), torch.tensor(mean), atol=1e-4), (
                    f"rank {rank}, iteration {iteration}: {mine} instead of {mean}"
                )


class Table(nn.Module):
    """A sparse table; the gradient of a row is twelve for each time that it is looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 2, sparse=True)

    def forward(self, rows):
        return 12 * self.table(rows)


def rows_of(rank, iteration):
    """Every pair of ranks looks up another number of rows."""
    return models.integers(1 + 7 * (rank // 2), seed=10 * rank + iteration, low=0, high=32).long()


def train_in_pairs_then_together(ctx):
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ctx.world, 2)]
    model = ddp(ctx, Table().to(ctx.device), process_group=pairs[ctx.rank // 2])
    told = []
    for iteration in range(5):
        if iteration == 3:
            private(model, "_update_process_group")(ctx.group)
        model.zero_grad(set_to_none=True)
        model(rows_of(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append(model.module.table.weight.grad.to_dense().flatten().tolist())
    return told


@check("DDP-162", "DDP-057", worlds=(4,), beyond=False)
def test_groups_that_became_one_average_their_sparse_gradients(ranks):
    for rank, told in enumerate(ranks(train_in_pairs_then_together)):
        for iteration, seen in enumerate(told):
            first = rank // 2 * 2
            members = range(ranks.world) if iteration >= 3 else range(first, first + 2)
            found = [oracle.local_gradients(Table(), rows_of(each, iteration))["table.weight"] for each in members]
            mean = sum(each.to_dense() for each in found) / len(members)
            assert seen == mean.flatten().tolist(), f"rank {rank}, iteration {iteration}"
