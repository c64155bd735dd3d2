"""Averages where a loop is less plain: ever more rows of a table, functional gradients first, kept graphs."""

import warnings

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.observing import TINY_MIB
from conformance.fixtures.training import ddp, gradients, numbers, scalar_means
from conformance.ranks import caught

# how many rows each rank looks up, by iteration: more than before on all ranks, on one, fewer, none but one
ROWS = [lambda rank: 2, lambda rank: 5 + rank, lambda rank: 40 if rank == 0 else 1, lambda rank: 3, lambda rank: 60]


def rows_of(rank, iteration):
    generator = torch.Generator().manual_seed(100 * iteration + rank)
    return torch.randint(0, 64, (ROWS[iteration](rank),), generator=generator)


class Table(nn.Module):
    """A sparse table; the gradient of a row is twelve for each time that it is looked up."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 2, sparse=True)

    def forward(self, rows):
        return 12 * self.table(rows)


def look_up_more_and_fewer(ctx):
    model = ddp(ctx, Table().to(ctx.device))
    told = []
    for iteration in range(len(ROWS)):
        model.zero_grad(set_to_none=True)
        model(rows_of(ctx.rank, iteration).to(ctx.device)).sum().backward()
        told.append(model.module.table.weight.grad.to_dense().flatten().tolist())
    return told


@check("DDP-057", worlds=MANY, beyond=False)
def test_every_row_arrives_however_many_rows_the_ranks_have(ranks):
    model, expected = Table(), []
    for iteration in range(len(ROWS)):
        found = [oracle.local_gradients(model, rows_of(rank, iteration)) for rank in range(ranks.world)]
        expected.append((sum(each["table.weight"].to_dense() for each in found) / ranks.world).flatten().tolist())
    for rank, told in enumerate(ranks(look_up_more_and_fewer)):
        for iteration, seen in enumerate(told):
            assert seen == expected[iteration], f"rank {rank}, iteration {iteration}"


def differentiate_first(ctx, wanted):
    """Between each forward and its backward the functional interface differentiates the same outputs."""
    model = ddp(ctx, models.Sum().to(ctx.device), bucket_cap_mb=TINY_MIB)
    seen = []
    for iteration in range(3):
        model.zero_grad(set_to_none=True)
        x = models.divisible(ctx.rank, iteration).to(ctx.device).requires_grad_()
        loss = model(x).sum()
        torch.autograd.grad(loss, [x] if wanted == "inputs" else list(model.parameters()), retain_graph=True)
        loss.backward()
        seen.append(gradients(model))
    return seen


@check("DDP-065", worlds=MANY, beyond=False)
def test_functional_gradients_leave_the_backward_that_follows_synchronised(ranks):
    alone = models.Sum()
    expected = []
    for iteration in range(3):
        batches = [models.divisible(rank, iteration) for rank in range(ranks.world)]
        expected.append(numbers(oracle.averaged_gradients(alone, batches, ranks.world).items()))
    for wanted, told in ranks.each(differentiate_first, ("inputs", "parameters")):
        assert told == [expected] * ranks.world, wanted


def use_beside(ctx):
    """One parameter is used by the loss alone, so that its gradient comes before those of the forward."""
    model = ddp(ctx, models.Branches().to(ctx.device), bucket_cap_mb=1e-6)
    seen = []
    for iteration in range(4):
        model.zero_grad(set_to_none=True)
        x = models.divisible_scalar(ctx.rank, iteration).to(ctx.device)
        output = model(x)
        (output.sum() + 2 * model.module.b(x).sum()).backward()
        seen.append(gradients(model))
    return seen


@check("DDP-049", worlds=MANY, beyond=False)
def test_a_parameter_that_only_the_loss_uses_is_averaged_too(ranks):
    expected = [{"a.weight": [mean], "b.weight": [2 * mean]} for mean in scalar_means((4,) * ranks.world)]
    assert ranks(use_beside) == [expected] * ranks.world


class TwoOutputs(models.Branches):
    """Hands out what each layer makes."""

    def forward(self, x, with_b):
        return self.b(x), self.a(x)


PENALTIES = {
    "before": (models.Branches, {}),
    "before, with a search": (models.Branches, {"find_unused_parameters": True}),
    "before the backwards of two outputs": (TwoOutputs, {}),
}


def penalise_first(ctx, kind, options):
    """A penalty on one weight is differentiated by itself, before the loss of the forward, or its losses one by one."""
    model = ddp(ctx, kind().to(ctx.device), **options)
    seen = []

    def train():
        for iteration in range(3):
            model.zero_grad(set_to_none=True)
            out = model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device), with_b=True)
            (12 * model.module.a.weight**2).sum().backward()
            for each in out if isinstance(out, tuple) else (out,):
                each.sum().backward()
            seen.append(gradients(model))

    error = caught(train)
    ctx.meet("trained")
    return error, seen


@check("DDP-062", "DDP-049", worlds=MANY, beyond=False, scenarios=PENALTIES)
def test_a_penalty_that_is_differentiated_first_is_averaged_with_the_rest_and_no_complaint_is_kept(ranks, scenario):
    expected = [{"a.weight": [mean + 24.0], "b.weight": [mean]} for mean in scalar_means((3,) * ranks.world)]
    for rank, (error, seen) in enumerate(ranks(penalise_first, *scenario)):
        if error is not None:  # refused, in that very backward
            assert error.is_a(RuntimeError), error
            assert seen == []
            ranks.at_limit("a backward before that of the forward ends in an error")
        else:
            assert seen == expected, f"rank {rank}"


def penalise_what_one_rank_uses(ctx):
    """A penalty before the loss on the only weight that rank 0 uses, under a search and in a static graph."""
    seen = []
    for options in ({"find_unused_parameters": True}, {"static_graph": True}):
        model = ddp(ctx, models.Branches().to(ctx.device), **options)
        for iteration in range(4):
            model.zero_grad(set_to_none=True)
            out = model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device), with_b=ctx.rank > 0)
            (12 * model.module.a.weight**2).sum().backward()
            out.sum().backward()
            seen.append(gradients(model))
    return seen


@check("DDP-099", worlds=MANY, beyond=False, deadline_s=5)
def test_a_penalty_before_the_loss_is_averaged_with_it_where_ranks_use_different_weights(ranks):
    expected = []
    for iteration in range(4):
        data = [models.divisible_scalar(rank, iteration).item() for rank in range(ranks.world)]
        expected.append({"a.weight": [sum(data) / ranks.world + 24.0], "b.weight": [sum(data[1:]) / ranks.world]})
    for rank, seen in enumerate(ranks(penalise_what_one_rank_uses)):
        assert seen == expected * 2, f"rank {rank}"


def penalise_all_of_two_models(ctx):
    """A penalty on all weights before the loss of two models, of whose first rank 0 uses only ``a``."""
    first, second = (
        ddp(ctx, models.Branches().to(ctx.device), find_unused_parameters=True, bucket_cap_mb=TINY_MIB)
        for _ in range(2)
    )
    seen = []
    for iteration in range(3):
        first.zero_grad(set_to_none=True), second.zero_grad(set_to_none=True)
        x = models.divisible_scalar(ctx.rank, iteration).to(ctx.device)
        loss = (first(x, with_b=ctx.rank > 0) + second(x, with_b=True)).sum()
        sum(12 * (weight**2).sum() for weight in [*first.parameters(), *second.parameters()]).backward()
        loss.backward()
        seen.append((gradients(first), gradients(second)))
    return seen


@check("DDP-099", worlds=MANY, beyond=False, deadline_s=5)
def test_a_penalty_before_the_loss_is_averaged_with_it_where_two_models_train_in_one_backward(ranks):
    expected = []
    for iteration in range(3):
        data = [models.divisible_scalar(rank, iteration).item() for rank in range(ranks.world)]
        of_all, of_some = ([sum(used) / ranks.world + 24.0] for used in (data, data[1:]))
        expected.append(({"a.weight": of_all, "b.weight": of_some}, {"a.weight": of_all, "b.weight": of_all}))
    for rank, seen in enumerate(ranks(penalise_all_of_two_models)):
        assert seen == expected, f"rank {rank}"


def penalise_later(ctx):
    """A penalty after the backward, one on the gradient of the inputs alone, and ordinary iterations in between."""
    seen = []
    for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
        model = ddp(ctx, models.Branches().to(ctx.device), **options)
        for iteration in range(3):
            model.zero_grad(set_to_none=True)
            model(models.divisible_scalar(ctx.rank, iteration).to(ctx.device), with_b=True).sum().backward()
            (12 * model.module.a.weight**2).sum().backward()
            seen.append(gradients(model))
    return seen


@check("DDP-061", "DDP-049", worlds=MANY, beyond=False)
def test_a_penalty_on_weights_after_the_backward_adds_the_same_on_every_rank(ranks):
    expected = [{"a.weight": [mean + 24.0], "b.weight": [mean]} for mean in scalar_means((3,) * ranks.world)]
    assert ranks(penalise_later) == [expected * 3] * ranks.world


WIDE = 100  # ten thousand elements: large gradients may be copied in another way than small ones


def keep_the_graph(ctx, as_view):
    """Backwards that can be differentiated themselves, of a loss that is not linear in the weights."""
    model = ddp(ctx, models.Parts("ab", width=WIDE).to(ctx.device), gradient_as_bucket_view=as_view)
    seen = []
    for iteration in range(2):
        for parameter in model.parameters():
            parameter.grad = None
        x = models.integers(1, WIDE, seed=10 * ctx.rank + iteration).to(ctx.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the cycle between a parameter and such a gradient, which we break
            (12 * model(x) ** 2).sum().backward(create_graph=True)
        seen.append(gradients(model))
    for parameter in model.parameters():
        parameter.grad = None
    return seen


@check("DDP-050", worlds=MANY, beyond=False, scenarios={"copies": False, "views": True})
def test_a_backward_that_keeps_its_graph_averages_too(ranks, scenario):
    alone, expected = models.Parts("ab", width=WIDE), []
    for iteration in range(2):
        batches = [models.integers(1, WIDE, seed=10 * rank + iteration) for rank in range(ranks.world)]
        mean = oracle.averaged_gradients(alone, batches, ranks.world, lambda output: (12 * output**2).sum())
        expected.append(numbers(mean.items()))
    assert ranks(keep_the_graph, scenario) == [expected] * ranks.world
