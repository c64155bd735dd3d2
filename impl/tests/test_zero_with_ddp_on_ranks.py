"""The documentation's own example, ``Join([ddp, zero])`` on uneven inputs, compared with one process."""

import itertools
import random

import pytest
from torch import nn

from .overlap_training import Alone, Net, batch, differences, groups_of, loss_of, uses_extra
from .zero_training import OPTIMIZERS, halving

pytestmark = pytest.mark.slow


def uneven(ctx, schedules, name, options):
    """One context for each schedule; compares live ranks in every iteration and all of them at the end."""
    subject, found = ctx.subject, {}
    kind, settings = OPTIMIZERS[name]
    for schedule in schedules:
        model = Net()
        alone = Alone(model, name, options)
        ddp = subject.DistributedDataParallel(
            model, bucket_cap_mb=0.0001, find_unused_parameters=bool(options.get("unused")),
            static_graph=bool(options.get("static")), gradient_as_bucket_view=bool(options.get("views")),
        )
        zero = subject.ZeroRedundancyOptimizer(
            groups_of(model, options), kind, parameters_as_bucket_view=bool(options.get("views")), **settings
        )
        if options.get("hook"):
            ddp.register_comm_hook(None, subject.default_hooks.allreduce_hook)
        scheduler = halving(zero) if options.get("scheduled") else None
        wrong = []
        micro = options.get("micro", 1)
        divide = options.get("divide_by_initial", True)
        listed = [zero, ddp] if options.get("zero_first") else [ddp, zero]
        with subject.Join(listed, divide_by_initial_world_size=divide):
            for iteration in range(schedule[ctx.rank]):
                zero.zero_grad()
                for part in range(micro):
                    ddp.require_backward_grad_sync = part == micro - 1
                    data = batch(ctx.rank, iteration * micro + part)
                    loss_of(ddp(data, uses_extra(options, ctx.rank, iteration))).backward()
                if options.get("clip"):
                    nn.utils.clip_grad_norm_(ddp.parameters(), options["clip"])
                zero.step()
                if scheduler:
                    scheduler.step()
                alone.step(schedule, iteration, micro)
                wrong += [f"iteration {iteration}: {text}" for text in differences(model, alone)]
        for iteration in range(schedule[ctx.rank], max(schedule)):
            alone.step(schedule, iteration, micro)
        wrong += [f"at the end: {text}" for text in differences(model, alone)]
        if wrong:
            found[schedule] = wrong
    return found


PAIRS = [pair for pair in itertools.product(range(5), repeat=2) if max(pair)]
GENERATED = random.Random(4)
THREE = [(2, 3, 5), (5, 3, 2), (0, 3, 0)] + [tuple(GENERATED.choices(range(5), k=2)) + (1,) for _ in range(3)]
FOUR = [(0, 1, 2, 3), (3, 2, 1, 0)] + [(2, *GENERATED.choices(range(4), k=3)) for _ in range(2)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_pair_of_counts_equals_one_process(run, name):
    assert run(uneven, PAIRS, name, {}, world=2) == [{}, {}]


TWEAKS = [
    {"zero_first": True},
    {"views": True},
    {"several": True, "scheduled": True},
    {"clip": 0.5},
    {"unused": True},
    {"static": True},
    {"hook": True},
    {"divide_by_initial": False, "hook": True},
    {"micro": 2},
]


@pytest.mark.parametrize("tweak", TWEAKS, ids=str)
def test_variants_equal_one_process(run, tweak):
    assert run(uneven, THREE, "adam", tweak, world=3) == [{}] * 3


@pytest.mark.parametrize("name", ["momentum", "adam", "counting"])
def test_generated_schedules_on_four_ranks(run, name):
    assert run(uneven, FOUR, name, {"scheduled": True}, world=4) == [{}] * 4


def closures(ctx, schedule, listed_first):
    """The whole iteration of the model happens inside the closure that the optimizer calls."""
    subject = ctx.subject
    model = Net()
    alone = Alone(model, "momentum", {})
    ddp = subject.DistributedDataParallel(model, bucket_cap_mb=0.0001)
    kind, settings = OPTIMIZERS["momentum"]
    zero = subject.ZeroRedundancyOptimizer(model.parameters(), kind, **settings)
    with subject.Join([zero, ddp] if listed_first else [ddp, zero]):
        for iteration in range(schedule[ctx.rank]):

            def closure(iteration=iteration):
                zero.zero_grad()
                loss = loss_of(ddp(batch(ctx.rank, iteration), True))
                loss.backward()
                return loss

            zero.step(closure)
    for iteration in range(max(schedule)):
        alone.step(schedule, iteration)
    return differences(model, alone)


@pytest.mark.parametrize("schedule", [(1, 3), (3, 0)])
def test_an_iteration_inside_the_closure(run, schedule):
    assert run(closures, schedule, False, world=2) == [[], []]


def two_pairs(ctx, schedule):
    """Two models and two optimizers in one context, as adversarial training has them."""
    subject, models = ctx.subject, [Net(), Net()]
    alone = [Alone(models[0], "adam", {}), Alone(models[1], "momentum", {})]
    ddps = [subject.DistributedDataParallel(model, bucket_cap_mb=0.0001) for model in models]
    zeros = [
        subject.ZeroRedundancyOptimizer(model.parameters(), OPTIMIZERS[name][0], **OPTIMIZERS[name][1])
        for model, name in zip(models, ["adam", "momentum"], strict=True)
    ]
    with subject.Join([*ddps, *zeros]):
        for iteration in range(schedule[ctx.rank]):
            for ddp, zero in zip(ddps, zeros, strict=True):
                zero.zero_grad()
                loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
                zero.step()
    for iteration in range(max(schedule)):
        for one in alone:
            one.step(schedule, iteration)
    return [text for model, one in zip(models, alone, strict=True) for text in differences(model, one)]


@pytest.mark.parametrize("schedule", [(1, 3), (3, 0)])
def test_two_models_and_two_optimizers(run, schedule):
    assert run(two_pairs, schedule, world=2) == [[], []]


def failing(ctx):
    """Rank 1 raises between backward and step while rank 0 has joined."""
    model = Net()
    ddp = ctx.subject.DistributedDataParallel(model)
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), OPTIMIZERS["sgd"][0], lr=0.1)
    try:
        with ctx.subject.Join([ddp, zero]):
            for iteration in range(1 if ctx.rank == 0 else 3):
                loss_of(ddp(batch(ctx.rank, iteration), True)).backward()
                if ctx.rank == 1 and iteration == 1:
                    raise KeyError("mine")
                zero.step()
    except Exception as error:
        return type(error).__name__, str(error) + " ".join(getattr(error, "__notes__", []))
    return None


def test_peers_hear_of_an_error_between_backward_and_step(run):
    results = run(failing, world=3)
    assert results[1][0] == "KeyError"
    for rank in (0, 2):
        assert "rank 1" in results[rank][1]
        assert "mine" in results[rank][1]
