"""Gradients that accumulate under no_sync while ranks run out of inputs: the divisor, and what the context leaves."""

from contextlib import nullcontext

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.training import ddp, gradient

EVERY = 3  # iterations that one reduction closes


def accumulate(ctx, schedule):
    """The gradient of a scalar after each iteration, divided by the active ranks; zeroed after every reduction."""
    model = ddp(ctx, models.scalar())
    seen = []
    with model.join(divide_by_initial_world_size=False):
        for iteration in range(schedule[ctx.rank]):
            closing = iteration % EVERY == EVERY - 1
            with nullcontext() if closing else model.no_sync():
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradient(model.module.weight))
            if closing:
                model.zero_grad(set_to_none=True)
    return seen


def accumulated_alone(schedule):
    held, seen = [0.0] * len(schedule), [[] for _ in schedule]
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        for rank in active:
            held[rank] += models.divisible_scalar(rank, iteration).item()
        closing = iteration % EVERY == EVERY - 1
        mean = sum(held[rank] for rank in active) / len(active)
        for rank in active:
            seen[rank].append(mean if closing else held[rank])
            held[rank] = 0.0 if closing else held[rank]
    return seen


@check("DDPJ-008", worlds=MANY, beyond=False)
def test_what_accumulated_is_divided_by_the_ranks_that_are_active_when_it_is_reduced(ranks):
    # ranks run out before, in the middle of, and right before the end of an accumulation
    several = (tuple(6 - rank for rank in range(ranks.world)), tuple(3 + rank for rank in range(ranks.world)))
    for schedule, told in ranks.each(accumulate, several):
        assert told == accumulated_alone(schedule), f"schedule {schedule}"


def end_unsynchronised(ctx, schedule):
    """A context whose last iterations are not synchronised, another one, and iterations outside; with buffers."""
    model = ddp(ctx, models.Counting(1.0))
    seen = []
    with model.join():
        for iteration in range(schedule[ctx.rank]):
            with model.no_sync() if iteration else nullcontext():
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
    for context in (model.join(), nullcontext()):
        with context:
            for iteration in range(2):
                model.zero_grad(set_to_none=True)
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(gradient(model.module.a.weight))
    return seen


@check("DDPJ-034", "DDPJ-035", worlds=MANY, beyond=False)
def test_after_an_unsynchronised_end_all_ranks_agree_about_what_comes_next(ranks):
    data = [[models.divisible_scalar(rank, iteration).item() for rank in range(ranks.world)] for iteration in range(2)]
    means = [sum(each) / ranks.world for each in data]
    several = ((3, *[1] * (ranks.world - 1)), (*[1] * (ranks.world - 1), 3))
    for schedule, told in ranks.each(end_unsynchronised, several):
        assert told == [means * 2] * ranks.world, f"schedule {schedule}"
