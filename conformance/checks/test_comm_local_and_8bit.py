"""Post-local SGD and the 8-bit hooks."""

import math
import os
from functools import partial
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import MANY, NotRun, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import alone, hooked, on_this_machine, step, steps
from conformance.fixtures.joinables import upper_ranks
from conformance.fixtures.training import ddp

START = 2
ITERATIONS = 4


# -- COMM-028: post-local SGD; the subgroups are not consecutive


def pair_of(rank):
    return [rank % 2, rank % 2 + 2]


def train_post_local(ctx, average_locally):
    pairs = [dist.new_group(pair_of(rank)) for rank in (0, 1)]
    library = ctx.subject.post_localSGD_hook
    state = library.PostLocalSGDState(ctx.group, pairs[ctx.rank % 2], START, average_locally)
    model = hooked(ctx, state, library.post_localSGD_hook)
    return steps(ctx, model, count=ITERATIONS)


@check("COMM-028", worlds=(4,), beyond=False, scenarios={"then by subgroup": True, "then not at all": False})
def test_gradients_are_averaged_globally_before_the_start_and_locally_after_it(ranks, scenario):
    everywhere = alone(range(4))
    for rank, seen in enumerate(ranks(train_post_local, scenario)):
        locally = alone(pair_of(rank) if scenario else [rank])
        assert seen[:START] == everywhere[:START]
        assert seen[START:] == locally[START:]


def train_by_default(ctx):
    """Two models with no subgroup given: that of the ranks on this machine."""
    library = ctx.subject.post_localSGD_hook
    states = [library.PostLocalSGDState(ctx.group, None, START) for _ in range(2)]
    both = [hooked(ctx, state, library.post_localSGD_hook) for state in states]
    told = or_not_run(ctx, lambda: [steps(ctx, model, count=ITERATIONS) for model in both])
    return told, on_this_machine()


def or_not_run(ctx, act):
    """What ``act`` returns; *not run* where the subject asks accelerators who is on this machine."""
    try:
        return act()
    except (RuntimeError, ValueError) as error:
        if ctx.device.type == "cpu" and "is available" in str(error):
            raise NotRun(f"{ctx.subject.name} finds a machine's ranks only where there are accelerators") from error
        raise


@check("COMM-028", worlds=MANY, beyond=False)
def test_without_a_subgroup_gradients_are_averaged_over_the_machine(ranks):
    everywhere = alone(range(ranks.world))
    for told, machine in ranks(train_by_default):
        assert told == [everywhere[:START] + alone(machine)[START:]] * 2


def train_on_two_machines(ctx):
    """As an implementation that asks is told, every second rank is on another machine."""
    library = ctx.subject.post_localSGD_hook
    model = hooked(ctx, library.PostLocalSGDState(None, None, START), library.post_localSGD_hook)
    with mock.patch.dict(os.environ, {"JOINERY_HOSTID": f"host {ctx.rank % 2}"}):
        return or_not_run(ctx, lambda: steps(ctx, model, count=ITERATIONS))


@check("COMM-028", worlds=(4,), beyond=False)
def test_without_a_subgroup_each_of_two_machines_averages_for_itself(ranks):
    everywhere = alone(range(4))
    told = ranks(train_on_two_machines)
    if told != [everywhere] * 4:  # as one that does not ask trains
        assert told == [everywhere[:START] + alone(pair_of(rank))[START:] for rank in range(4)]


def train_upper_by_default(ctx):
    """The same on all ranks but the first, whose places in their group are not their places in the world.

    One of them is in more groups than the others, and where there are four two of them have trained so before. Then all
    ranks form a group: those outside have had no part in what the hook did, and need not know of it.
    """
    dist.new_group([0, 1])
    pair, group, told = dist.new_group([1, 2]), dist.new_group(upper_ranks(ctx.world)), None
    if ctx.rank > 0:
        library = ctx.subject.post_localSGD_hook

        def train(group):
            state = library.PostLocalSGDState(group, None, START)
            return steps(ctx, hooked(ctx, state, library.post_localSGD_hook, group=group), count=ITERATIONS)

        try:
            if ctx.world > 3 and ctx.rank < 3:
                or_not_run(ctx, lambda: train(pair))
            told = or_not_run(ctx, lambda: train(group)), on_this_machine(group)
        except NotRun:
            ctx.store.set("trained", "no")
            raise
        ctx.store.set("trained", "yes")
    elif ctx.store.get("trained") == b"no":
        return None
    here = torch.ones(1, device=ctx.device)
    dist.all_reduce(here, group=dist.new_group())
    return told, here.item()


@check("COMM-028", worlds=(3, 4), beyond=False)
def test_without_a_subgroup_a_model_on_some_ranks_averages_over_those_of_the_machine(ranks):
    everywhere = alone(upper_ranks(ranks.world))
    for rank, (told, counted) in enumerate(ranks(train_upper_by_default)):
        assert counted == ranks.world
        if rank > 0:
            seen, machine = told
            assert seen == everywhere[:START] + alone(machine)[START:]


# -- COMM-029: 8-bit


def wide():
    return models.drawn(nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 20)))


def batch(rank, iteration):
    return torch.randn(16, 30, generator=torch.Generator().manual_seed(10 * rank + iteration)) * (rank + 1)


def train_quantised(ctx, hook):
    """Two iterations: the averaged gradients, and the range of this rank's own."""
    own = ddp(ctx, wide())
    own.register_comm_hook(None, ctx.subject.debugging_hooks.noop_hook)
    model = ddp(ctx, wide())
    model.register_comm_hook(ctx.group, getattr(ctx.subject.quantization_hooks, hook))
    told = []
    for iteration in range(2):
        local = [value for values in step(own, batch(ctx.rank, iteration)).values() for value in values]
        told.append((step(model, batch(ctx.rank, iteration)), max(*local, 0.0) - min(*local, 0.0)))
    return told


HOOKS = {"one scale": "quantization_pertensor_hook", "a scale for each channel": "quantization_perchannel_hook"}


@check("COMM-029", worlds=(1, *MANY), scenarios=HOOKS)
def test_eight_bit_averages_are_off_by_less_than_a_step_and_equal_on_all_ranks(ranks, scenario):
    exact = alone(range(ranks.world), batch=batch, model=wide, count=2)
    runs = ranks(train_quantised, scenario)
    for iteration, right in enumerate(exact):
        one_step = max(told[iteration][1] for told in runs) / 255
        first = runs[0][iteration][0]
        assert [told[iteration][0] for told in runs] == [first] * ranks.world, "the ranks have different gradients"
        errors = [abs(a - b) for name in right for a, b in zip(first[name], right[name], strict=True)]
        assert max(errors) < one_step
        assert max(errors) > 0, "nothing was quantised"


def loud_and_quiet(rank):
    """Numbers for four channels, of which the first half is a thousand times as large as the second."""
    numbers = torch.linspace(-1, 1, 4 * 512) * (rank + 1)
    numbers[: 2 * 512] *= 1000
    return numbers


def train_by_channels(ctx):
    model = ddp(ctx, models.Fed(4 * 512))
    model.register_comm_hook(ctx.group, ctx.subject.quantization_hooks.quantization_perchannel_hook)
    return step(model, loud_and_quiet(ctx.rank))["weight"]


@check("COMM-029", worlds=MANY, beyond=False)
def test_what_is_small_in_one_channel_is_not_lost_beside_what_is_large_in_another(ranks):
    mean = torch.stack([loud_and_quiet(rank) for rank in range(ranks.world)]).mean(0)
    for rank, found in enumerate(ranks(train_by_channels)):
        errors = (torch.tensor(found) - mean).abs()
        assert errors[-512:].max() < 2 * ranks.world / 255, f"rank {rank}: {errors[-512:].max()} beside a quiet one"


def overflow_once(ctx, hook):
    """Whether gradients are finite, by iteration; in the second one rank 0 has met a number that is not."""
    told = []
    for number in (math.inf, -math.inf, math.nan):
        model = ddp(ctx, models.Fed(6))
        model.register_comm_hook(ctx.group, getattr(ctx.subject.quantization_hooks, hook))
        for iteration in range(3):
            fed = torch.linspace(-1, 1, 6)
            fed[2] = number if (iteration, ctx.rank) == (1, 0) else 0.5
            told.append(all(map(math.isfinite, step(model, fed)["weight"])))
    return told


@check("COMM-029", worlds=MANY, beyond=False, scenarios=HOOKS)
def test_a_gradient_that_overflows_shows_on_every_rank_in_its_own_iteration(ranks, scenario):
    for rank, told in enumerate(ranks(overflow_once, scenario)):
        assert told == [True, False, True] * 3, f"rank {rank}: finite are {told}"


def train_tiny_doubles(ctx, hook):
    model = ddp(ctx, models.Fed(6).double())
    model.register_comm_hook(ctx.group, getattr(ctx.subject.quantization_hooks, hook))
    return step(model, TINY * (ctx.rank + 1) * torch.linspace(-1, 1, 6, dtype=torch.float64))["weight"]


TINY = 1e-60  # a float is zero


@check("COMM-029", worlds=MANY, beyond=False, scenarios=HOOKS)
def test_doubles_beyond_the_range_of_floats_are_not_lost(ranks, scenario):
    mean = torch.linspace(-1, 1, 6, dtype=torch.float64) * (ranks.world + 1) / 2
    for rank, found in enumerate(ranks(train_tiny_doubles, scenario)):
        errors = (torch.tensor(found, dtype=torch.float64) / TINY - mean).abs()
        assert errors.max() < 2 * ranks.world / 255, f"rank {rank}: {found}"


def train_on_one_side(ctx, hook):
    """Gradients that are all positive, and then all negative."""
    model = ddp(ctx, nn.Linear(4, 1, bias=False))
    model.register_comm_hook(ctx.group, getattr(ctx.subject.quantization_hooks, hook))
    values = (100 + ctx.rank + torch.arange(4.0)).view(1, 4)
    return [step(model, sign * values)["weight"] for sign in (1, -1)]


@check("COMM-029", worlds=MANY, beyond=False, scenarios=HOOKS)
def test_eight_bits_also_hold_gradients_of_one_sign(ranks, scenario):
    mean = [100 + (ranks.world - 1) / 2 + place for place in range(4)]
    for seen in ranks(train_on_one_side, scenario):
        for sign, found in zip((1, -1), seen, strict=True):
            errors = [abs(a - sign * b) for a, b in zip(found, mean, strict=True)]
            assert max(errors) < (103 + ranks.world - 1) / 255


def train_with_idle_rank(ctx, hook):
    """The last rank has nothing but zeros to send."""
    model = hooked(ctx, ctx.group, getattr(ctx.subject.quantization_hooks, hook))
    factor = 0.0 if ctx.rank == ctx.world - 1 else 1.0
    return step(model, factor * models.divisible(ctx.rank, 0)), factor


@check("COMM-029", worlds=(2, 4), scenarios=HOOKS)
def test_a_rank_that_sends_zeros_does_not_spoil_the_others(ranks, scenario):
    members = range(ranks.world - 1)
    right = alone(members, divisor=ranks.world, count=1)[0]
    weights = [name for name in right if name.endswith("weight")]
    for seen, _ in ranks(train_with_idle_rank, scenario):
        largest = max(abs(value) for name in weights for value in right[name]) * ranks.world
        errors = [abs(a - b) for name in weights for a, b in zip(seen[name], right[name], strict=True)]
        assert max(errors) <= 4 * largest / 255


def quantise_by_default(ctx):
    """The gradients by channels of the default length, and of that length when it is asked for."""
    hook, told = ctx.subject.quantization_hooks.quantization_perchannel_hook, []
    for each in (hook, partial(hook, bucket_size=512)):
        model = ddp(ctx, wide())
        model.register_comm_hook(ctx.group, each)
        told.append(step(model, batch(ctx.rank, 0)))
    return told


@check("COMM-029", worlds=MANY, beyond=False)
def test_channels_of_eight_bits_are_512_elements_long_unless_another_length_is_asked_for(ranks):
    for by_default, as_asked in ranks(quantise_by_default):
        assert by_default == as_asked
