"""Where the documented overlapped step is weak: Gloo, unused parameters, new tensors, subgroups, new groups, Join."""

import itertools
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models, overlapping
from conformance.fixtures.comm_hooks import done
from conformance.fixtures.observing import assert_refused, takes
from conformance.fixtures.overlapping import Overlap, Seen, assert_as_alone, iteration, iterations, pair_of
from conformance.fixtures.training import gradients, numbers, parameters, private
from conformance.ranks import caught

READY = 4  # by then every implementation steps
SEQUENTIAL, INTERLEAVED = Overlap(), Overlap(True, hook=overlapping.settled)
HOOKS = {"sequential": SEQUENTIAL, "interleaved": INTERLEAVED}
DEADLINE_S = 5.0


# -- HOOK-041: Gloo

FIFTY = 50


def train_on_gloo(ctx, interleaved):
    """Fifty iterations on the default group with the library's own all-reduce; where that is refused, why."""
    pairs = []
    error = caught(lambda: pairs.append(pair_of(ctx, Overlap(interleaved, optimizer="sgd"), dist.group.WORLD)))
    return (error, []) if error else (None, iterations(pairs[0], FIFTY))


@check("HOOK-041", worlds=(2, 3), backends=("gloo",), scenarios={"sequential": False, "interleaved": True})
def test_on_gloo_fifty_iterations_are_those_of_one_process_or_refused(ranks, scenario):
    errors, runs = zip(*ranks(train_on_gloo, scenario), strict=True)
    if any(errors):
        assert_refused(errors, RuntimeError, "gloo")
        ranks.at_limit("Gloo is refused")
        return
    assert sum(assert_as_alone(runs, Overlap(scenario, optimizer="sgd"))) >= FIFTY - 2


# -- HOOK-042: unused parameters


def train_searching(ctx, how):
    """Each iteration leaves one part of the model unused on some rank, every third one on all of them."""
    pairs, seen = [], []

    def attempt():
        pairs.append(pair_of(ctx, how))
        seen.extend(train_parts(pairs[0]))

    return caught(attempt), seen


def train_parts(pair):
    for number in range(READY + 2):
        pair.model.use = parts_used(pair.place, number)
        yield iteration(pair, number)


def parts_used(place, number):
    return "a" if (place + number) % 2 else parts_used_anywhere(number)


def parts_used_anywhere(number):
    return "a" if number % 3 == 2 else "ab"


@check("HOOK-042", worlds=(2, 3), scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_with_a_search_for_unused_parameters_training_goes_on_or_is_refused(ranks, scenario):
    how = replace(scenario, model=Two, ddp={"find_unused_parameters": True})
    errors, runs = zip(*ranks(train_searching, how), strict=True)
    if any(errors):
        assert_refused(errors, Exception, "unused")
        ranks.at_limit("a search for unused parameters is refused")
        return
    alone = Two()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.25, momentum=0.5)  # moves what has a gradient, even if it is 0
    updated = 0
    for number, seen in enumerate(zip(*runs, strict=True)):
        before = parameters(alone)
        if number < how.warm_up and not updated and all(mine.parameters == before for mine in seen):
            continue
        step_parts(alone, optimizer, number, ranks.world)
        updated += 1
        for rank, mine in enumerate(seen):
            assert mine.parameters == parameters(alone), f"rank {rank}, iteration {number}"


class Two(models.Parts):
    def __init__(self):
        super().__init__("ab")


def step_parts(alone, optimizer, number, world, active=None, cleared="set to None"):
    """The rule for one process: average whatever somebody used; the rest has what the clearing leaves it."""
    total = {}
    for rank in range(world) if active is None else active:
        alone.use = parts_used(rank, number)
        used = [parameter for part in alone.use for parameter in alone.parts[part].parameters()]
        found = torch.autograd.grad(overlapping.loss(alone(overlapping.batch(rank, number))), used)
        for parameter, one in zip(used, found, strict=True):
            total[parameter] = total.get(parameter, 0) + one / world
    clear(alone, number, cleared)
    for parameter, average in total.items():
        parameter.grad = average
    optimizer.step()


def clear(model, number, cleared):
    """As programs do: all gradients, or where they are ``kept`` those of the parts that this iteration uses."""
    parts = model.parts.values() if cleared != "kept" else [model.parts[p] for p in parts_used_anywhere(number)]
    for part in parts:
        part.zero_grad(set_to_none=cleared != "zeroed")


def search_unevenly(ctx, schedule, how, cleared):
    """The same in a context that lists both, on uneven inputs; parameters after each iteration, and at the end."""
    pairs, seen = [], []

    def attempt():
        pairs.append(pair_of(ctx, how))
        seen.extend(train_parts(pairs[0]))
        with ctx.subject.Join([pairs[0].ddp, pairs[0].zero]):
            for number in range(READY + 2, READY + 2 + schedule[ctx.rank]):
                pairs[0].model.use = parts_used(pairs[0].place, number)
                clear(pairs[0].model, number, cleared)
                overlapping.loss(pairs[0].ddp(pairs[0].batch(number))).backward()
                seen.append(Seen({}, parameters(pairs[0].model)))

    error = caught(attempt)
    return error, [one.parameters for one in seen], [parameters(pair.model) for pair in pairs]


@check("HOOK-042", worlds=MANY, deadline_s=DEADLINE_S, beyond=False, scenarios={
    f"{name}, gradients {how}": (way, how) for name, way in HOOKS.items() for how in ("set to None", "zeroed", "kept")
})  # fmt: skip
def test_a_search_on_uneven_inputs_leaves_everybody_where_one_process_is(ranks, scenario):
    way, cleared = scenario
    how = replace(way, model=Two, ddp={"find_unused_parameters": True})
    schedules = (tuple(1 + 3 * rank for rank in range(ranks.world)), (4, *[0] * (ranks.world - 1)))
    for schedule, told in ranks.each(search_unevenly, schedules, how, cleared):
        errors, runs, ends = zip(*told, strict=True)
        if any(errors):
            assert_refused(errors, Exception, "unused")
            ranks.at_limit("a search for unused parameters is refused")
            return
        expected = searched_alone(schedule, cleared, [run[: how.warm_up] for run in runs])
        for rank, run in enumerate(runs):
            for number, seen in enumerate(run):
                assert seen == expected[number], f"rank {rank}, schedule {schedule}, iteration {number}"
            assert ends[rank] == [expected[-1]], f"rank {rank} at the end, schedule {schedule}"


def searched_alone(schedule, cleared, first):
    """One process's parameters after each iteration; ``first`` shows how often it may wait in the beginning."""
    alone = Two()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.25, momentum=0.5)
    expected = []
    for number in range(READY + 2 + max(schedule)):
        before = parameters(alone)
        active = [rank for rank, count in enumerate(schedule) if count > number - READY - 2]
        if not waited(number, before, first):
            before_the_block = number < READY + 2
            step_parts(alone, optimizer, number, len(schedule), active, "set to None" if before_the_block else cleared)
        expected.append(parameters(alone))
    return expected


def waited(number, before, first):
    """Whether every rank still had these parameters after that iteration, one of the first."""
    return number < len(first[0]) and all(run[number] == before for run in first)


# -- DDPJ-030: what is left out of reductions once a rank has joined


def only_the_first_part(model):
    return [parameter for name, parameter in model.named_parameters() if "parts.a." in name]


def leave_out_once_joined(ctx, how, early):
    """All use both parts until rank ``early`` runs out, the others one of them from then on; parameters each time."""
    takes(ctx, "skip_all_reduce_unused_params")
    pair, seen = pair_of(ctx, how), []

    def train(*numbers):
        for number in numbers:
            pair.model.use = "ab" if number <= READY else "a"
            seen.append(iteration(pair, number).parameters)

    train(*range(READY))
    with ctx.subject.Join([pair.ddp, pair.zero]):
        train(READY, *([] if ctx.rank == early else [READY + 1, READY + 2]))
    return seen, parameters(pair.model)


@check("DDPJ-030", worlds=MANY, deadline_s=DEADLINE_S, beyond=False, scenarios=HOOKS)
def test_a_joined_rank_keeps_its_gradient_of_what_is_left_out_of_reductions(ranks, scenario):
    how = replace(scenario, model=Two, ddp={"find_unused_parameters": True, "skip_all_reduce_unused_params": True})
    ways = [replace(how, listed=listed) for listed in (nn.Module.parameters, only_the_first_part)]
    several = itertools.product(ways, (0, ranks.world - 1))
    for (how, early), told in ranks.each(leave_out_once_joined, several, spread=True):
        runs, ends = zip(*told, strict=True)
        expected = left_out_alone(how.listed, ranks.world, early, [run[: how.warm_up] for run in runs])
        for rank, run in enumerate(runs):
            for number, seen in enumerate(run):
                assert seen == expected[number], f"rank {rank} of those without {early}, iteration {number}"
            assert ends[rank] == expected[-1], f"rank {rank} at the end, without {early}"


def left_out_alone(listed, world, early, first):
    """One process's parameters after each iteration; ``first`` shows how often it may wait in the beginning."""
    alone, expected = Two(), []
    optimizer = torch.optim.SGD(listed(alone), lr=0.25, momentum=0.5)
    for number in range(READY + 3):
        before = parameters(alone)
        active = range(world) if number <= READY else [rank for rank in range(world) if rank != early]
        alone.use = "ab" if number <= READY else "a"
        if not waited(number, before, first):
            optimizer.zero_grad()
            for rank in active:
                (overlapping.loss(alone(overlapping.batch(rank, number))) / world).backward()
            optimizer.step()
        expected.append(parameters(alone))
    return expected


def note_sizes(ctx, how):
    """After each iteration, the last of which leave a part out: the total size, and the elements that are noted."""
    takes(ctx, "skip_all_reduce_unused_params")
    pair, rows = pair_of(ctx, how), []
    for number in range(READY + 3):
        pair.model.use = "ab" if number <= READY else "a"
        iteration(pair, number)
        info = private(pair.zero, "_overlap_info")
        noted = sum(parameter.numel() for bucket in info.params_per_bucket for parameter in bucket)
        rows.append((info.total_size, noted))
    return rows


@check("HOOK-015", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_the_total_size_is_that_of_the_buckets_that_are_left(ranks):
    options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
    ways = [replace(way, shard=True, model=Two, ddp=options) for way in HOOKS.values()]
    for how, told in ranks.each(note_sizes, ways):
        for rank, rows in enumerate(told):
            assert all(total == noted for total, noted in rows), f"rank {rank}, {how}: {rows}"


def zero_what_is_left_out(ctx, how):
    """All use both parts, then one of them; the other keeps gradients of zeros. The error, and parameters each time."""
    takes(ctx, "skip_all_reduce_unused_params")
    pair, seen = pair_of(ctx, how), []

    def train():
        for number in range(READY + 3):
            pair.model.use = "ab" if number <= READY else "a"
            pair.ddp.zero_grad(set_to_none=False)
            overlapping.loss(pair.ddp(pair.batch(number))).backward()
            seen.append(parameters(pair.model))

    return caught(train), seen


@check("HOOK-042", worlds=MANY, deadline_s=DEADLINE_S, beyond=False)
def test_gradients_of_zeros_of_what_is_left_out_of_reductions_are_stepped_with_or_refused(ranks):
    for name, way in HOOKS.items():
        options = {"find_unused_parameters": True, "skip_all_reduce_unused_params": True}
        errors, runs = zip(*ranks(zero_what_is_left_out, replace(way, model=Two, ddp=options)), strict=True)
        expected = zeroed_alone(ranks.world, [run[: way.warm_up] for run in runs])
        for rank, run in enumerate(runs):
            assert errors[rank] is None or errors[rank].is_a(RuntimeError), f"rank {rank}, {name}: {errors[rank]}"
            assert errors[rank] is not None or len(run) == len(expected), f"rank {rank}, {name}"
            for number, seen in enumerate(run):
                assert seen == expected[number], f"rank {rank}, iteration {number}"


def zeroed_alone(world, first):
    """One process's parameters after each iteration; ``first`` shows how often it may wait in the beginning."""
    alone, expected = Two(), []
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.25, momentum=0.5)
    for number in range(READY + 3):
        before = parameters(alone)
        alone.use = "ab" if number <= READY else "a"
        if not waited(number, before, first):
            optimizer.zero_grad(set_to_none=False)
            for rank in range(world):
                (overlapping.loss(alone(overlapping.batch(rank, number))) / world).backward()
            optimizer.step()
        expected.append(parameters(alone))
    return expected


# -- COMM-014: a hook whose answer is no tensor like the bucket


def larger(_state, bucket):
    return overlapping.completed(torch.cat([bucket.buffer(), torch.ones(1, device=bucket.buffer().device)]))


def several(_state, bucket):
    return done([bucket.buffer()])


def no_future(_state, bucket):
    return bucket.buffer()


def answer_wrongly(ctx, hook, keywords):
    """By schedule the error of the first iteration, and whether a parameter has moved."""
    told, group = [], overlapping.group_of(ctx)
    for way in HOOKS.values():
        if keywords and way.interleaved:
            continue
        pair = pair_of(ctx, replace(way, hook=hook, keywords=keywords), group)
        before = parameters(pair.model)
        told.append((caught(iteration, pair, 0), parameters(pair.model) != before))
    return told


ANSWERS = {
    "too long": (larger, {}), "a list": (several, {}), "no future": (no_future, {}),
    "a list, to be clipped": (several, {"max_norm": 1.0}),
}  # fmt: skip


@check("COMM-014", worlds=(1, 2), deadline_s=DEADLINE_S, beyond=False, scenarios=ANSWERS)
def test_in_an_overlapped_step_an_answer_unlike_the_bucket_is_an_error_before_anything_is_stepped(ranks, scenario):
    for told in ranks(answer_wrongly, *scenario):
        assert_refused([error for error, _ in told], RuntimeError, *(["bucket"] if scenario[1] else []))
        assert [moved for _, moved in told] == [False] * len(told)


# -- HOOK-043: a hook that returns something new


def ones(_state, bucket):
    """Leaves the bucket as it was and returns ones."""
    return overlapping.completed(torch.ones_like(bucket.buffer()))


def every_second(_state, bucket):
    """Returns ones that lie apart: between them there are others, which nobody is to step with."""
    both = torch.stack([torch.ones_like(bucket.buffer()), torch.full_like(bucket.buffer(), 7.0)], dim=1)
    return overlapping.completed(both[:, 0])


def ways_to_ones(how):
    """Each hook with gradients outside of buckets and inside."""
    return [
        replace(how, hook=hook, optimizer="sgd", ddp={"gradient_as_bucket_view": views})
        for hook in (ones, every_second) for views in (False, True)
    ]  # fmt: skip


def train_on_ones(ctx, ways):
    group = overlapping.group_of(ctx)
    return [iterations(pair_of(ctx, how, group)) for how in ways]


@check("HOOK-043", scenarios=HOOKS, deadline_s=DEADLINE_S)
def test_what_the_wrapped_hooks_future_holds_is_what_gradients_are_and_what_is_stepped(ranks, scenario):
    for run in itertools.chain(*ranks(train_on_ones, ways_to_ones(scenario))):
        before = parameters(models.Sum())
        for number, seen in enumerate(run):
            assert {value for values in seen.gradients.values() for value in values} == {1.0}
            moved = {old - new for name in before for old, new in zip(before[name], seen.parameters[name], strict=True)}
            assert moved == {0.25} or (moved == {0.0} and number < scenario.warm_up)
            before = seen.parameters


# -- HOOK-044: a group whose ranks are not the global ones


def train_in_a_subgroup(ctx, how):
    members = list(range(1, ctx.world))
    group = overlapping.group_of(ctx, members)
    return iterations(pair_of(ctx, how, group)) if ctx.rank in members else None


@check("HOOK-044", worlds=(3, 4), scenarios=HOOKS, deadline_s=DEADLINE_S, beyond=False)
def test_a_group_without_rank_0_trains_as_one_process(ranks, scenario):
    for how, (_, *runs) in ranks.each(train_in_a_subgroup, [replace(scenario, shard=shard) for shard in (False, True)]):
        assert True in assert_as_alone(runs, how)


# -- HOOK-045: another group later


MOVES = [(replace(how, optimizer="sgd"), READY * late) for how in HOOKS.values() for late in (True, False)]


def change_the_group(ctx, moves, members):
    """Train, hand DDP another group, go on there with uneven inputs, then with even ones; what is held after each."""
    groups = [(overlapping.group_of(ctx), overlapping.group_of(ctx, members)) for _ in moves]
    at = [[group] for group, _ in groups]  # whom a hook's state names is the user's affair (DDP-165)
    pairs = [pair_of(ctx, how, *group, following(group)) for (how, _), group in zip(moves, at, strict=True)]
    counts = [count for _, count in moves]
    told = [in_a_context(ctx, *one) for one in zip(pairs, counts, strict=True)]
    if ctx.rank not in members:
        return told
    for pair, (_, count), group, (_, other), found in zip(pairs, moves, at, groups, told, strict=True):
        group[0], pair.place = other, members.index(ctx.rank)
        private(pair.ddp, "_update_process_group")(other)
        with ctx.subject.Join([pair.ddp, pair.zero]):
            found += [iteration(pair, count + number).parameters for number in range(2 * pair.place)]
        found.append(parameters(pair.model))
        found.append(iteration(pair, 20).parameters)
    return told


def in_a_context(ctx, pair, count):
    with ctx.subject.Join([pair.ddp, pair.zero]):
        return [held.parameters for held in iterations(pair, count)]


def following(group):
    """A wrapper that calls a hook with the group that is in this list by then."""
    return lambda hook: lambda _, bucket: hook(group[0], bucket)


@check("HOOK-045", worlds=(1, 2, 3), deadline_s=DEADLINE_S)
def test_training_goes_on_when_ddp_is_given_another_group(ranks):
    members = [0, 2] if ranks.world == 3 else list(range(ranks.world))
    for (how, count), *runs in zip(MOVES, *ranks(change_the_group, MOVES, members), strict=True):
        alone = overlapping.Alone(how, ranks.world)
        before = moments_of(alone, [range(ranks.world)] * count, 0)
        alone.world = len(members)
        schedule = [2 * place for place in range(len(members))]
        uneven = [oracle.active_ranks(schedule, number) for number in range(max(schedule))]
        after = moments_of(alone, uneven, count)
        last = [parameters(alone.model), *moments_of(alone, [range(len(members))], 20)]
        for rank, run in enumerate(runs):
            expected = [*before, *after[: schedule[members.index(rank)]], *last] if rank in members else before
            assert run == expected, f"rank {rank}, {how}, moved after {count} iterations"


def moments_of(alone, active, first):
    """What one process holds after each of these iterations, given by their ranks."""
    found = []
    for number, ranks in enumerate(active, first):
        alone.step(overlapping.averaged(alone.model, number, ranks, alone.world))
        found.append(parameters(alone.model))
    return found


# -- HOOK-047: uneven inputs


def train_unevenly(ctx, schedule, how, both):
    """Even iterations until everybody steps, then a context with uneven ones; parameters after each and at the end."""
    pair = pair_of(ctx, how)
    seen = iterations(pair, READY)
    joinables = [pair.ddp, pair.zero] if both else [pair.ddp]
    with ctx.subject.Join(joinables):
        seen += [iteration(pair, READY + number) for number in range(schedule[ctx.rank])]
    return seen, Seen(gradients(pair.model), parameters(pair.model))


JOINED = {
    "sequential, the model": (SEQUENTIAL, False),
    "sequential, model and optimizer": (SEQUENTIAL, True),
    "interleaved, the model": (INTERLEAVED, False),
    "interleaved, model and optimizer": (INTERLEAVED, True),
}


@check("HOOK-047", worlds=MANY, scenarios=JOINED, deadline_s=DEADLINE_S)
def test_on_uneven_inputs_everybody_ends_where_one_process_does(ranks, scenario):
    how, both = scenario
    schedules = (tuple(range(1, ranks.world + 1)), (3, *[0] * (ranks.world - 1)))
    for schedule, results in ranks.each(train_unevenly, schedules, how, both):
        expected = uneven_alone(how, schedule, results)
        for rank, (_, last) in enumerate(results):
            assert last.parameters == expected, f"rank {rank}, schedule {schedule}"


def uneven_alone(how, schedule, results):
    """One process's parameters at the end; compares those of the live ranks on the way."""
    alone = overlapping.Alone(how, len(schedule))
    for number in range(READY):
        alone.follow([run[number] for run, _ in results])
    for number in range(max(schedule)):
        active = oracle.active_ranks(schedule, number)
        average = overlapping.averaged(alone.model, READY + number, active, len(schedule))
        alone.step(average)
        for rank in active:
            seen = results[rank][0][READY + number]
            assert seen.gradients == numbers(average.items()), f"rank {rank}, iteration {number}"
            assert seen.parameters == parameters(alone.model), f"rank {rank}, iteration {number}"
    return parameters(alone.model)
