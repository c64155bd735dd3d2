"""Graphs under uneven inputs: unused parameters, the one rebuild of the buckets, static graphs."""

import itertools
from contextlib import nullcontext
from functools import partial

from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.training import Job, assert_as_alone, ddp, gradients, scalar_means, train_each

TINY_MIB = 1e-4


def train_branches(ctx, schedule, users):
    model = ddp(ctx, models.Branches(), find_unused_parameters=True)
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad(set_to_none=True)
            model(models.divisible_scalar(ctx.rank, iteration), with_b=ctx.rank in users).sum().backward()
            seen.append((gradients(model)["a.weight"], gradients(model)["b.weight"]))
    return seen


def train_branches_on_each(ctx, several, users):
    return [train_branches(ctx, schedule, users) for schedule in several]


def branches_alone(schedule, users):
    rows = []
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        data = {rank: models.divisible_scalar(rank, iteration).item() for rank in active}
        used = [data[rank] for rank in active if rank in users]
        rows.append(([sum(data.values()) / len(schedule)], [sum(used) / len(schedule)] if used else None))
    return [rows[:count] for count in schedule]


@check("DDPJ-030", worlds=MANY, beyond=False)
def test_joined_ranks_report_their_parameters_as_unused(ranks, schedules):
    # the only user of b is sometimes the first to join: from then on nobody used b, so it gets no gradient at all
    users = (1,)

    def examine(several):
        by_schedule = zip(*ranks(train_branches_on_each, several, users), strict=True)
        for schedule, seen in zip(several, by_schedule, strict=True):
            for rank, alone in enumerate(branches_alone(schedule, users)):
                assert seen[rank] == alone, f"rank {rank}, schedule {schedule}"

    schedules.examine(examine, drawn=False)


@check("DDPJ-031", worlds=MANY, beyond=False)
def test_buckets_are_rebuilt_with_ranks_that_joined_before(ranks):
    late = [(0, *range(1, ranks.world - 1), 4), (4, *range(1, ranks.world - 1), 0), (1, *[4] * (ranks.world - 1))]
    jobs = [
        Job(partial(models.Sum, 6), models.divisible, schedule, ddp={"bucket_cap_mb": TINY_MIB, **view})
        for schedule, view in itertools.product(late, ({}, {"gradient_as_bucket_view": True}))
    ]
    for job, trained in zip(jobs, zip(*ranks(train_each, jobs), strict=True), strict=True):
        assert_as_alone(job, trained)


def train_static(ctx, schedule, unused, find_unused):
    model = ddp(
        ctx, models.Branches() if unused else nn.Sequential(models.scalar()), static_graph=True,
        find_unused_parameters=find_unused,
    )
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad(set_to_none=True)
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(list(gradients(model).values()))
    return seen


def assert_static(ranks, schedule, unused, find_unused=False):
    rows = [[[mean], None] if unused else [[mean]] for mean in scalar_means(schedule)]
    seen = ranks(train_static, schedule, unused, find_unused)
    for rank, count in enumerate(schedule):
        assert seen[rank] == rows[:count], f"rank {rank}, schedule {schedule}"


@check("DDPJ-032", worlds=MANY, beyond=False)
def test_a_static_graph_with_an_unused_parameter_can_be_joined(ranks):
    assert_static(ranks, (1, 2, 4, 5)[: ranks.world], unused=True)


@check("DDPJ-032", worlds=MANY, beyond=False)
def test_a_static_graph_can_be_joined_when_rank_0_is_the_last(ranks):
    assert_static(ranks, (5, 4, 2, 1)[: ranks.world], unused=False)


@check("DDPJ-032", worlds=MANY, beyond=False)
def test_a_static_graph_that_looks_for_unused_parameters_can_be_joined(ranks):
    assert_static(ranks, (2, *[5] * (ranks.world - 1)), unused=True, find_unused=True)


@check("DDPJ-032", worlds=MANY, beyond=False)
def test_a_static_graph_can_be_joined_by_a_rank_without_inputs(ranks):
    assert_static(ranks, (0, *[3] * (ranks.world - 1)), unused=False)


def train_beside(ctx, epochs, join_last):
    """A static graph and another model share every backward; a context for each epoch, the last one perhaps without."""
    static = ddp(ctx, models.Branches(), static_graph=True)
    other = ddp(ctx, models.Branches(), find_unused_parameters=True)
    seen = []
    for number, schedule in enumerate(epochs):
        last = number == len(epochs) - 1
        with nullcontext() if last and not join_last else ctx.subject.Join([static, other]):
            for iteration in range(schedule[ctx.rank]):
                static.zero_grad(set_to_none=True)
                other.zero_grad(set_to_none=True)
                x = models.divisible_scalar(ctx.rank, iteration)
                (10 * other(x, with_b=True).sum() + static(x, with_b=ctx.rank == 0).sum()).backward()
                seen.append((gradients(static), gradients(other)))
    return seen


def beside_alone(epochs, world):
    """What one process makes of it; b of the static graph counts from rank 0's first iteration on."""
    rows, b_is_known = [[] for _ in range(world)], False
    for schedule, iteration in ((each, i) for each in epochs for i in range(max(each))):
        data = {r: models.divisible_scalar(r, iteration).item() for r in oracle.active_ranks(schedule, iteration)}
        b_is_known |= 0 in data
        mean, of_b = sum(data.values()) / world, data.get(0, 0.0) / world
        row = (
            {"a.weight": [mean], "b.weight": [of_b] if b_is_known else None},
            {"a.weight": [10 * mean], "b.weight": [10 * mean]},
        )
        for rank in data:
            rows[rank].append(row)
    return rows


@check("DDPJ-032", worlds=MANY, beyond=False, scenarios={"in a context": True, "outside": False})
def test_a_static_graph_can_be_trained_beside_another_model_by_a_rank_that_only_shadowed_it(ranks, scenario):
    # which rank begins late, and which parameters it uses, must change neither the order nor what counts as unused
    rest = ranks.world - 1
    several = (
        ((0, *[3] * rest), (3,) * ranks.world),
        ((3, *[0] * rest), (3,) * ranks.world),
        ((2, *[0] * rest), (0, *[3] * rest), (2,) * ranks.world),
    )
    for epochs, told in ranks.each(train_beside, several, scenario):
        assert told == beside_alone(epochs, ranks.world), f"schedules {epochs}"
