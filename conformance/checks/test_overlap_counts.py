"""The overlapped step where states meet: late futures, an optimizer that counts, rebuilt buckets, idle owners, Join."""

import itertools
from dataclasses import replace
from functools import partial

import torch

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models, overlapping
from conformance.fixtures.joinables import upper_ranks
from conformance.fixtures.overlapping import Overlap, iteration, pair_of
from conformance.fixtures.sharding import in_groups_of_one
from conformance.fixtures.training import ddp, numbers, parameters, private

DEADLINE_S = 8.0
READY = 4  # by then every implementation steps
COUNTING = Overlap(optimizer="counting", hook=overlapping.settled)
BOTH = (COUNTING, replace(COUNTING, interleaved=True))
ONE_BUCKET_MIB = 25


def shown(optimizer):
    """What the groups of an optimizer show, but for the parameters: rates and counts."""
    return [{key: group.get(key) for key in ("lr", "count")} for group in optimizer.param_groups]


class Follower(overlapping.Alone):
    """One process that steps in every iteration but those in which the ranks may wait, uneven ones included."""

    def __init__(self, how, world, divide_by_initial=True):
        super().__init__(how, world)
        self.divide_by_initial = divide_by_initial

    def uneven(self, number, active):
        """One more iteration, of these ranks only; the gradients that it stepped with."""
        divisor = self.world if self.divide_by_initial else len(active)
        average = overlapping.averaged(self.model, number, active, divisor)
        self.step(average)
        return average

    def state(self):
        return parameters(self.model), shown(self.optimizer)


def held(pair):
    return parameters(pair.model), shown(pair.zero)


# -- HOOK-018, HOOK-020: futures that come late, buckets that turn out otherwise, owners of pieces


def train_late(ctx, ways):
    group = overlapping.group_of(ctx)
    found = []
    for how in ways:
        pair, seen = pair_of(ctx, how, group), []
        for number in range(READY + 3):
            if number == READY:  # as a cast or a move does
                for parameter in pair.model.parameters():
                    parameter.data = parameter.data.clone()
            if number == READY + 1:
                private(pair.ddp, "_update_process_group")(overlapping.group_of(ctx))
            seen.append((iteration(pair, number), shown(pair.zero)))
        found.append(seen)
    return found


@check("HOOK-018", worlds=(2, 3, 4), deadline_s=DEADLINE_S, beyond=False)
def test_late_futures_rebuilt_buckets_other_storage_and_another_group_leave_every_count_right(ranks):
    kinds = itertools.product((False, True), (False, True), (partial(models.Sum, 7), partial(models.SumBackwards, 7)))
    ways = [
        replace(COUNTING, interleaved=interleaved, shard=shard, model=model, hook=overlapping.late)
        for interleaved, shard, model in kinds
    ]
    # owned in several parts already in the first iteration, in which some counts begin
    ways += [replace(how, ddp={"find_unused_parameters": True}) for how in (ways[0], ways[-1])]
    for how, *runs in zip(ways, *ranks(train_late, ways), strict=True):
        alone = Follower(how, ranks.world)
        for told in zip(*runs, strict=True):
            alone.follow([seen for seen, _ in told])
            if alone.updates[-1]:
                for rank, (_, groups) in enumerate(told):
                    assert groups == shown(alone.optimizer), f"rank {rank}, {how}"


def train_both(ctx, ways):
    group = overlapping.group_of(ctx)
    usable = overlapping.counting_or(ctx, "momentum", group)
    found = []
    for how in ways:
        pair = pair_of(ctx, replace(how, optimizer=usable), group)
        found.append([(iteration(pair, number, overlapping.squares), shown(pair.zero)) for number in range(READY + 2)])
    return found


@check("HOOK-020", worlds=MANY, deadline_s=DEADLINE_S)
def test_both_hooks_leave_the_same_numbers_whatever_the_buckets(ranks):
    layers = partial(overlapping.small, 5)
    layouts = (False, overlapping.CAP_MIB), (False, ONE_BUCKET_MIB), (True, overlapping.CAP_MIB)
    ways = [
        replace(how, shard=shard, ddp={"bucket_cap_mb": cap}, model=model)
        for (shard, cap), model in itertools.product(layouts, (layers, models.SumBackwards)) for how in BOTH
    ]  # fmt: skip
    for rank, found in enumerate(ranks(train_both, ways)):
        for how, sequential, interleaved in zip(ways[::2], found[::2], found[1::2], strict=True):
            assert interleaved == sequential, f"rank {rank}, {how}"
            assert sequential[0][0].parameters != sequential[-1][0].parameters


def turn_around_first(ctx, how):
    """Before the first iteration the parameters change their order in the group: what each one leaves, and the states
    of parameters that are saved on the last rank."""
    pair = pair_of(ctx, how)
    pair.zero.param_groups[0]["params"].reverse()
    seen = overlapping.iterations(pair, READY)
    pair.zero.consolidate_state_dict(ctx.world - 1)
    saved = pair.zero.state_dict()["state"] if ctx.rank == ctx.world - 1 else {}
    last = iteration(pair, READY)
    return [each.parameters for each in (*seen, last)], sorted(key for key in saved if isinstance(key, int))


@check("HOOK-018", "ZERO-032", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_parameters_that_change_their_order_before_the_first_iteration_have_their_states_saved(ranks):
    for how, runs in ranks.each(turn_around_first, BOTH):
        alone, expected = Follower(how, ranks.world), []
        for number in range(READY + 1):
            alone.uneven(number, range(ranks.world))
            expected.append(parameters(alone.model))
        for rank, (seen, _) in enumerate(runs):
            assert seen == expected, f"rank {rank}, {how}"
        assert runs[-1][1] == list(range(len(expected[0]))), f"{how}: states of {runs[-1][1]}"


# -- HOOK-046: what comes between iterations


def interrupt(ctx, how):
    """Accumulation and evaluation before an iteration; what is held after each update."""
    group = overlapping.group_of(ctx)
    how = replace(how, optimizer=overlapping.counting_or(ctx, "momentum", group))
    pair = pair_of(ctx, how, group)
    found = [iteration(pair, number).parameters for number in range(READY)]
    number = READY
    for act in (accumulate_first, evaluate_first):
        pair.ddp.zero_grad(set_to_none=True)
        act(pair, number)
        overlapping.loss(pair.ddp(pair.batch(number))).backward()
        found.append(parameters(pair.model))
        number += 1
    return how.optimizer, found, shown(pair.zero)


def accumulate_first(pair, number):
    for micro in (1, 2):
        with pair.ddp.no_sync():
            overlapping.loss(pair.ddp(pair.batch(number + 100 * micro))).backward()


def evaluate_first(pair, number):
    pair.ddp.eval()
    with torch.no_grad():
        pair.ddp(pair.batch(number))
    pair.ddp.train()


@check("HOOK-046", worlds=MANY, deadline_s=DEADLINE_S)
def test_what_comes_between_iterations_is_not_counted(ranks):
    for how, told in ranks.each(interrupt, [replace(how, model=models.SumBackwards) for how in BOTH]):
        how = replace(how, optimizer=told[0][0])
        alone = Follower(how, ranks.world)
        expected, waited = [], 0
        for number in range(READY + 2):
            before = parameters(alone.model)
            if number < how.warm_up and all(run[number] == before for _, run, _ in told):
                waited += 1
            else:
                micro = (number, number + 100, number + 200) if number == READY else (number,)
                batches = [overlapping.batch(rank, one) for rank in range(ranks.world) for one in micro]
                alone.step(oracle.averaged_gradients(alone.model, batches, ranks.world, overlapping.loss))
            expected.append(parameters(alone.model))
        for rank, (_, run, groups) in enumerate(told):
            assert run == expected, f"rank {rank}, {how}"
            if how.optimizer == "counting":
                assert groups == shown(alone.optimizer), f"rank {rank}, {how}"
        assert waited < READY


# -- HOOK-018: counts in groups of which a rank owns nothing


def each_by_itself(model):
    return in_groups_of_one(model.parameters())


def skip_what_others_own(ctx, ways, schedules):
    """For each way and schedule: the counts that are saved on this rank, and what is held before a context, behind it
    and an iteration later."""
    group, told = overlapping.group_of(ctx), []
    for how, schedule in itertools.product(ways, schedules):
        pair = pair_of(ctx, how, group)
        held = [seen.parameters for seen in overlapping.iterations(pair, READY)][-1:]
        for to in range(ctx.world):
            pair.zero.consolidate_state_dict(to)
            if to == ctx.rank:
                saved = [each.get("step") for each in pair.zero.state_dict()["param_groups"]]
        with ctx.subject.Join([pair.ddp, pair.zero]):
            for number in range(schedule[ctx.rank]):
                iteration(pair, READY + number)
        told.append((saved, *held, parameters(pair.model), iteration(pair, READY + 9).parameters))
    return told


@check("HOOK-018", "HOOK-047", worlds=MANY, deadline_s=DEADLINE_S, beyond=False)
def test_what_is_counted_in_groups_of_which_a_rank_owns_nothing_goes_on_and_is_saved(ranks):
    how = Overlap(optimizer="skipping", listed=each_by_itself, hook=overlapping.settled)
    ways = [how, replace(how, interleaved=True)]
    schedules = [tuple(2 if rank == live else 1 for rank in range(ranks.world)) for live in range(ranks.world)]
    runs = ranks(skip_what_others_own, ways, schedules)
    for place, (way, schedule) in enumerate(itertools.product(ways, schedules)):
        alone, expected = Follower(way, ranks.world), []
        everybody = range(ranks.world)
        for number in range(READY):
            alone.uneven(number, everybody)
        expected.append(parameters(alone.model))
        for number in range(max(schedule)):
            alone.uneven(READY + number, oracle.active_ranks(schedule, number))
        expected.append(parameters(alone.model))
        alone.uneven(READY + 9, everybody)
        expected.append(parameters(alone.model))
        for rank, told in enumerate(runs):
            saved, *held = told[place]
            assert set(saved) == {512 + READY}, f"rank {rank}, {way}: {saved}"
            assert held == expected, f"rank {rank}, schedule {schedule}, {way}"


def wrap_anew(ctx, interleaved):
    """An optimizer that skips groups of which it owns nothing, under one model and then under another one around the
    same parameters, all of which have one owner there: what is held after each iteration."""
    group = overlapping.group_of(ctx)
    how = Overlap(interleaved, optimizer="skipping", listed=each_by_itself)
    pair = pair_of(ctx, how, group)
    seen = overlapping.iterations(pair, READY)
    again = ddp(ctx, pair.model, bucket_cap_mb=ONE_BUCKET_MIB, process_group=group)
    again.register_comm_hook(group, overlapping.hook_of(ctx, again, pair.zero, interleaved))
    pair = replace(pair, ddp=again)
    return [each.parameters for each in (*seen, *(iteration(pair, READY + number) for number in range(2)))]


@check("HOOK-018", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False, scenarios={"sequential": 0, "interleaved": 1})
def test_what_is_counted_in_a_group_goes_to_owners_that_had_nothing_of_it(ranks, scenario):
    alone, expected = Follower(Overlap(optimizer="skipping"), ranks.world), []
    for number in range(READY + 2):
        alone.uneven(number, range(ranks.world))
        expected.append(parameters(alone.model))
    assert ranks(wrap_anew, bool(scenario)) == [expected] * ranks.world


# -- HOOK-018: each gradient reduced to its owner only


def reduce_to_owners(ctx, jobs):
    """On all ranks but 0: even iterations, then uneven ones; for each what is held, and gradients by owner."""
    members = upper_ranks(ctx.world)
    group = overlapping.group_of(ctx, members)
    if ctx.rank not in members:
        return [None] * len(jobs)
    return [reduce_each(ctx, pair_of(ctx, how, group), schedule, divide) for how, schedule, divide in jobs]


def reduce_each(ctx, pair, schedule, divide):
    seen = [iteration(pair, number) for number in range(READY)]
    with ctx.subject.Join([pair.ddp, pair.zero], divide_by_initial_world_size=divide):
        seen += [iteration(pair, READY + number) for number in range(schedule[pair.place])]
    last = held(pair)
    seen.append(iteration(pair, READY + 9))  # everybody again
    return seen, last, sorted(overlapping.stateful(pair))


@check("HOOK-018", worlds=(3, 4), deadline_s=DEADLINE_S, beyond=False)
def test_gradients_that_are_reduced_to_their_owners_train_as_one_process(ranks):
    up = tuple(range(1, ranks.world))
    kinds = (False, True), (False, True), (models.SumBackwards,)
    owners_train_as_one_process(ranks, *kinds, ((up, True), (up[::-1], False)))


@check("HOOK-018", "HOOK-044", worlds=(4,), deadline_s=DEADLINE_S)
def test_in_a_group_of_three_owners_are_counted_within_the_group(ranks):
    """Two ranks have more than one way to each other; three need a collective that is told the owner."""
    kinds = (False,), (False,), (models.SumBackwards, models.Complex)
    owners_train_as_one_process(ranks, *kinds, (((1, 1, 1), True),))


def owners_train_as_one_process(ranks, *kinds):
    """``kinds``: whether interleaved, whether sharded within buckets, models, schedules with their divide rule."""
    world = ranks.world - 1
    jobs = [
        (Overlap(interleaved, shard, "momentum", model, keywords={"reduce_scatter": True}), schedule, divide)
        for interleaved, shard, model, (schedule, divide) in itertools.product(*kinds)
    ]
    _, *found = ranks(reduce_to_owners, jobs)
    for (how, schedule, divide), *runs in zip(jobs, *found, strict=True):
        about = f"{how.interleaved=}, {how.shard=}, {how.model=}, {schedule=}, {divide=}"
        owner = {name: rank for rank, (_, _, mine) in enumerate(runs) for name in mine}
        alone = Follower(how, world, divide)
        assert set(owner) == set(parameters(alone.model)), about
        for number in range(READY + max(schedule) + 1):
            last = number == READY + max(schedule)
            active = range(world) if last or number < READY else oracle.active_ranks(schedule, number - READY)
            alone.divide_by_initial = divide or number < READY or last
            average = numbers(alone.uneven(READY + 9 if last else number, active).items())
            for rank in active:
                seen = runs[rank][0][-1 if last else number]
                assert seen.parameters == parameters(alone.model), f"rank {rank}, iteration {number}, {about}"
                if number >= 2 and not last:  # the owners are settled by then
                    mine = {
                        name: values if owner[name] == rank else [0.0] * len(values) for name, values in average.items()
                    }
                    assert seen.gradients == mine, f"rank {rank}, iteration {number}, {about}"
            if number == READY + max(schedule) - 1:
                for rank, (_, end, _) in enumerate(runs):
                    assert end[0] == parameters(alone.model), f"rank {rank} after the block, {about}"


# -- HOOK-047: a joined rank that owns nothing


def join_without_a_shard(ctx, how, schedule, both):
    """A context in which some ranks own nothing, then two iterations of everybody; what is held after each."""
    group = overlapping.group_of(ctx)
    how = replace(how, optimizer=overlapping.counting_or(ctx, "momentum", group))
    pair = pair_of(ctx, how, group)
    found = [(iteration(pair, number).parameters, None) for number in range(READY)]
    with ctx.subject.Join([pair.ddp, pair.zero] if both else [pair.ddp]):
        for number in range(schedule[ctx.rank]):
            iteration(pair, READY + number)
            found.append(held(pair))
    found.append(held(pair))
    for number in (20, 21):
        iteration(pair, number)
        found.append(held(pair))
    return how.optimizer, found


@check("HOOK-047", "ZERO-030", worlds=(3, 4), deadline_s=DEADLINE_S, beyond=False)
def test_a_rank_without_a_shard_that_joins_counts_on(ranks):
    world = ranks.world
    lone_owner, lone_other = (4, *[1] * (world - 1)), (*[1] * (world - 1), 4)
    one, other = (replace(how, ddp={"bucket_cap_mb": ONE_BUCKET_MIB}) for how in BOTH)  # all of it is rank 0's
    several = (one, lone_owner, False), (other, lone_other, True), (one, lone_other, False), (other, lone_owner, True)
    for (how, schedule, _), told in ranks.each(join_without_a_shard, several, spread=True):
        how = replace(how, optimizer=told[0][0])
        assert_counted_on(told, Follower(how, world), how, schedule)


def assert_counted_on(told, alone, how, schedule):
    for number in range(READY):
        before = parameters(alone.model)
        if number >= how.warm_up or any(run[number][0] != before for _, run in told):
            alone.uneven(number, range(len(schedule)))
    moments = []
    for number in range(max(schedule)):
        alone.uneven(READY + number, oracle.active_ranks(schedule, number))
        moments.append(alone.state())
    after = [moments[-1]]
    for number in (20, 21):
        alone.uneven(number, range(len(schedule)))
        after.append(alone.state())
    for rank, (_, run) in enumerate(told):
        expected = [*moments[: schedule[rank]], *after]
        for place, (mine, right) in enumerate(zip(run[READY:], expected, strict=True)):
            assert mine[0] == right[0], f"rank {rank}, update {place} of the context, {schedule=}"
            if how.optimizer == "counting":
                assert mine[1] == right[1], f"rank {rank}, update {place} of the context, {schedule=}"


# -- HOOK-018: an optimizer that does not go by its groups


def train_privately(ctx, ways):
    group, found = overlapping.group_of(ctx), []
    for how in ways:
        pair = pair_of(ctx, how, group)
        found.append([iteration(pair, number) for number in range(READY + 3)])
    return found


@check("HOOK-018", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_an_optimizer_that_keeps_parameters_and_momentum_to_itself_trains_as_without_overlap(ranks):
    kinds = itertools.product(
        (False, True), (False, True), (overlapping.CAP_MIB, ONE_BUCKET_MIB), (models.Sum, models.SumBackwards)
    )
    keeping = Overlap(optimizer="private", hook=overlapping.settled)
    ways = [
        replace(keeping, interleaved=interleaved, shard=shard, model=partial(model, 5), ddp={"bucket_cap_mb": cap})
        for interleaved, shard, cap, model in kinds
    ]
    for how, *runs in zip(ways, *ranks(train_privately, ways), strict=True):
        alone = Follower(how, ranks.world)
        for told in zip(*runs, strict=True):
            alone.follow(told)


# -- HOOK-018, COMM-021: half precision around a reduction to owners


def reduce_to_owners_in_half(ctx, ways):
    """For each way what each iteration leaves, and whose states this rank keeps."""
    group, told = overlapping.group_of(ctx), []
    for how in ways:
        pair = pair_of(ctx, how, group, ctx.subject.default_hooks.fp16_compress_wrapper)
        told.append((overlapping.iterations(pair, READY), overlapping.stateful(pair)))
    return told


@check("HOOK-018", "COMM-021", worlds=MANY, deadline_s=DEADLINE_S, beyond=False)
def test_a_reduction_to_owners_may_be_wrapped_in_half_precision(ranks):
    ways = [
        Overlap(interleaved, model=model, keywords={"reduce_scatter": True})
        for interleaved in (False, True) for model in (models.Sum, models.Complex)
    ]  # fmt: skip
    for how, *runs in zip(ways, *ranks(reduce_to_owners_in_half, ways), strict=True):
        alone = Follower(how, ranks.world)
        for number in range(READY):
            means = numbers(alone.uneven(number, range(ranks.world)).items())
            for rank, (seen, owned) in enumerate(runs):
                held = {name: values if name in owned else [0.0] * len(values) for name, values in means.items()}
                assert seen[number].gradients == held, f"gradients of rank {rank}, iteration {number}, {how}"
                assert seen[number].parameters == parameters(alone.model), f"rank {rank}, iteration {number}, {how}"


# -- HOOK-018: two optimizers, one hook around the other


class ByTwo(Follower):
    """One process with an optimizer for every second parameter, and one that counts for the others."""

    NAMES = ("momentum", "counting")

    def __init__(self, world):
        super().__init__(Overlap(), world)
        params = list(self.model.parameters())
        kinds = map(overlapping.OPTIMIZERS.__getitem__, self.NAMES)
        self.optimizers = [kind(params[place::2], **settings) for place, (kind, settings) in enumerate(kinds)]

    def step(self, average):
        overlapping.give(self.model, average)
        for optimizer in self.optimizers:
            optimizer.step()


def step_by_two(ctx, ways, schedule):
    """By whether the inner and the outer hook are interleaved: what is held after each of this rank's iterations, some
    of which are in a context, and in the end; and in how many ways the parameters have lain since the second one."""
    group, told = overlapping.group_of(ctx), []
    for way in ways:
        hook, options = None, {"bucket_cap_mb": ONE_BUCKET_MIB, "process_group": group}
        model = ddp(ctx, models.Sum().to(ctx.device), **options)
        params, zeros, seen, places = list(model.parameters()), [], [], []
        for place, interleaved in enumerate(way):
            zeros.append(overlapping.optimizer_of(ctx, params[place::2], ByTwo.NAMES[place], group))
            hook = overlapping.hook_of(ctx, model, zeros[-1], interleaved, hook)
        model.register_comm_hook(group, hook)
        pair = overlapping.Pair(model, zeros[0], group, ctx.rank)

        def step(*numbers_, pair=pair, seen=seen, places=places, params=params):
            for number in numbers_:
                seen.append(iteration(pair, number).parameters)
                places.append(tuple(each.data_ptr() for each in params))

        step(*range(READY))
        with ctx.subject.Join([model, *zeros]):
            step(*range(READY, READY + schedule[ctx.rank]))
        seen.append(parameters(pair.model))
        told.append((seen, len(set(places[1:]))))
    return told


@check("HOOK-018", "HOOK-047", worlds=(2, 3), deadline_s=DEADLINE_S, beyond=False)
def test_two_optimizers_of_one_model_are_stepped_by_one_hook_around_the_other(ranks):
    ways, schedule = list(itertools.product((False, True), repeat=2)), tuple(range(1, 1 + ranks.world))
    alone, expected = ByTwo(ranks.world), []
    for number in range(READY + ranks.world):
        alone.uneven(number, oracle.active_ranks([READY + count for count in schedule], number))
        expected.append(parameters(alone.model))
    for rank, told in enumerate(ranks(step_by_two, ways, schedule)):
        for way, (seen, lain) in zip(ways, told, strict=True):
            assert seen == [*expected[: READY + schedule[rank]], expected[-1]], f"rank {rank}, interleaved {way}"
            assert lain == 1, f"rank {rank}, interleaved {way}: parameters were moved {lain - 1} times"
