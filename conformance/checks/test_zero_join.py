"""A sharded optimizer on uneven inputs, with DDP and alone: one process's weights, wherever it stands in the list."""

import itertools

import torch
import torch.distributed as dist

from conformance.api import schedules as scenario
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.joinables import upper_ranks
from conformance.fixtures.observing import TINY_MIB
from conformance.fixtures.sharding import (
    OPTIMIZERS,
    Alone,
    Asking,
    Reference,
    first_gap,
    give,
    in_two_groups,
    sharded,
    some_parameters,
    whole,
)
from conformance.fixtures.training import parameters


def train(ctx, schedule, name="SGD", group=None, place=None, **options):
    """DDP and ZeRO in one context; where this rank differs from one process, and its parameters at the end."""
    place = ctx.rank if place is None else place
    listed, divide = options.pop("listed", ("ddp", "zero")), options.pop("divide_by_initial", True)
    views, scheduled = options.pop("views", False), options.pop("scheduled", False)
    keywords = options.pop("keywords", {})  # of the step
    model = models.Sum(options.pop("layers", 4)).to(ctx.device)
    alone = Alone(ctx, model, name, schedule, divide_by_initial=divide)
    ddp = ctx.subject.DistributedDataParallel(model, process_group=group, bucket_cap_mb=TINY_MIB, **options)
    zero = sharded(ctx, model.parameters(), name, process_group=group, parameters_as_bucket_view=views)
    by_name = {"ddp": ddp, "zero": zero}
    gaps = {}

    def follow(iteration):
        alone.take(iteration)
        alone.optimizer.step(**keywords)
        if scheduled:
            alone.optimizer.param_groups[0]["lr"] *= 0.5

    with ctx.subject.Join([by_name[each] for each in listed], divide_by_initial_world_size=divide):
        for iteration in range(schedule[place]):
            zero.zero_grad()
            ddp(whole(place, iteration).to(ctx.device)).sum().backward()
            zero.step(**keywords)
            if scheduled:
                zero.param_groups[0]["lr"] *= 0.5
            follow(iteration)
            gaps[iteration] = alone.gap(model)
    for iteration in range(schedule[place], max(schedule)):
        follow(iteration)
    gaps["the end"] = alone.gap(model)
    return {when: gap for when, gap in gaps.items() if gap}, parameters(model)


def train_each(ctx, jobs):
    return [train(ctx, schedule, name, **options) for schedule, name, options in jobs]


def as_one_process(ranks, jobs):
    """Every rank has one process's parameters after each of its iterations and at the end, for every job."""
    results = ranks(train_each, jobs)
    for place, (schedule, name, options) in enumerate(jobs):
        for rank, mine in enumerate(results):
            assert mine[place][0] == {}, f"rank {rank}, schedule {schedule}, {name}, {options}"


def equal_replicas(ranks, jobs):
    """At the end all ranks have the same parameters, whatever they are."""
    results = ranks(train_each, jobs)
    for place, (schedule, name, _) in enumerate(jobs):
        for rank, mine in enumerate(results):
            assert mine[place][1] == results[0][place][1], f"rank {rank}, schedule {schedule}, {name}"


def each_with_another_optimizer(schedules):
    return [(schedule, name, {}) for schedule, name in zip(schedules, itertools.cycle(OPTIMIZERS), strict=False)]


@check("ZERO-021", worlds=MANY, deadline_s=20)
def test_with_ddp_uneven_inputs_end_with_equal_parameters_on_all_ranks(ranks):
    equal_replicas(ranks, each_with_another_optimizer(scenario.uneven_shapes(ranks.world)))
    ten_and_more = tuple(10 + rank for rank in range(ranks.world))  # the documented example
    equal_replicas(ranks, [(ten_and_more, "Adam", {})])


def hear_of_steps(ctx, schedule, hooked):
    """The calls of a hook before each step, which this rank alone may have, and the parameters at the end."""
    calls, model = [], models.Sum(3).to(ctx.device)
    ddp = ctx.subject.DistributedDataParallel(model)
    zero = sharded(ctx, model.parameters())
    if ctx.rank == hooked:
        zero.register_step_pre_hook(lambda *_: calls.append("step"))
    with ctx.subject.Join([ddp, zero]):
        for iteration in range(schedule[ctx.rank]):
            zero.zero_grad()
            ddp(whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
            zero.step()
    return len(calls), parameters(model)


@check("ZERO-021", worlds=MANY, deadline_s=10)
def test_a_hook_before_a_step_may_be_there_on_one_rank_only(ranks):
    upwards, hooked = scenario.linear(ranks.world, 1), ranks.world - 1
    for schedule, results in ranks.each(hear_of_steps, (scenario.even(ranks.world, 2), upwards, upwards[::-1]), hooked):
        assert [calls for calls, _ in results] == [0] * hooked + [max(schedule)], f"schedule {schedule}"
        assert all(mine == results[0][1] for _, mine in results), f"schedule {schedule}"


def train_two_models(ctx, schedule):
    """Two models and their optimizers in one context, as adversaries are trained; the gaps at the end."""
    both = [models.Sum(3).to(ctx.device) for _ in range(2)]
    alone = [Alone(ctx, model, "SGD", schedule) for model in both]
    wrapped = [ctx.subject.DistributedDataParallel(model) for model in both]
    optimizers = [sharded(ctx, model.parameters(), "SGD") for model in both]
    with ctx.subject.Join([*wrapped, *optimizers]):
        for iteration in range(schedule[ctx.rank]):
            for model, optimizer in zip(wrapped, optimizers, strict=True):
                optimizer.zero_grad()
                model(whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
                optimizer.step()
    for iteration in range(max(schedule)):
        for one in alone:
            one.take(iteration)
            one.optimizer.step()
    return [one.gap(model) for one, model in zip(alone, both, strict=True)]


@check("ZERO-021", worlds=MANY, deadline_s=20)
def test_two_models_and_their_optimizers_train_in_one_context(ranks):
    assert ranks(train_two_models, (2,) * ranks.world) == [[None, None]] * ranks.world


@check("ZERO-022", worlds=MANY, deadline_s=20)
def test_the_documented_example_trains_as_one_process_does(ranks):
    as_one_process(ranks, [(tuple(10 + rank for rank in range(ranks.world)), "Adam", {})])


PAIRS = [pair for pair in itertools.product(range(5), repeat=2) if pair[0] != pair[1]]


@check("ZERO-022", worlds=(2,), deadline_s=30, scenarios={name: name for name in OPTIMIZERS})
def test_every_uneven_pair_of_counts_trains_as_one_process_does(ranks, scenario):
    as_one_process(ranks, [(pair, scenario, {}) for pair in PAIRS])


@check("ZERO-022", worlds=(3, 4), deadline_s=30)
def test_every_uneven_shape_trains_as_one_process_does(ranks, schedules):
    def examine(several):
        as_one_process(ranks, each_with_another_optimizer(several))

    schedules.examine(examine, uneven=True, drawn=False)


VARIANTS = {
    "bucket views": {"views": True},
    "gradients as bucket views": {"gradient_as_bucket_view": True},
    "a changing learning rate": {"scheduled": True},
    "divided by the active ranks": {"divide_by_initial": False},
    "unused parameters searched": {"find_unused_parameters": True},
    "a static graph": {"static_graph": True},
    "fewer parameters than ranks": {"layers": 1},
}


@check("ZERO-022", worlds=(3,), deadline_s=10, scenarios=VARIANTS, beyond=False)
def test_variants_train_as_one_process_does(ranks, scenario):
    world = ranks.world
    schedules = (tuple(1 + rank for rank in range(world)), tuple(world - rank for rank in range(world)))
    as_one_process(ranks, [(schedule, "SGD with momentum and decay", scenario) for schedule in schedules])


@check("ZERO-022", worlds=(3,), deadline_s=10, beyond=False)
def test_keywords_of_a_step_reach_every_rank_that_has_joined(ranks):
    # the second rank to join has heard of them only as a live one
    scaled = {"keywords": {"scale": 0.5}}
    as_one_process(ranks, [(schedule, "a user's own", scaled) for schedule in ((1, 2, 4), (4, 2, 1))])


@check("ZERO-019", worlds=(1, 2, 3, 4), deadline_s=10)
def test_on_even_inputs_a_context_changes_nothing(ranks):
    even = scenario.even(ranks.world, 3)
    as_one_process(ranks, [(even, name, {"divide_by_initial": False}) for name in ("SGD", "Adam")])


class Scaled(torch.optim.SGD):
    """A user's optimizer whose steps take a keyword, and which changes none of its settings."""

    def step(self, closure=None, *, scale=1.0):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None if parameter.grad is None else parameter.grad * scale
        return super().step(closure)


def step_with_a_keyword(ctx, schedule):
    """Where this rank differs from the ordinary optimizer, whose steps have the same keyword, at the end.

    The last step has none: those that joined before must not go on with an old one.
    """
    params = some_parameters(ctx)
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in params]
    ordinary = Scaled(copies, lr=0.5)
    zero = ctx.subject.ZeroRedundancyOptimizer(params, Scaled, lr=0.5)
    keywords = [{"scale": 0.25}] * (max(schedule) - 1) + [{}]
    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            give(params, iteration)
            zero.step(**keywords[iteration])
    for iteration in range(max(schedule)):
        give(copies, iteration)
        ordinary.step(**keywords[iteration])
    return first_gap(params, copies)


@check("ZERO-020", worlds=(3,), deadline_s=10, beyond=False)
def test_who_joins_later_hears_of_a_steps_keywords_though_they_are_old_news_and_when_they_end(ranks):
    for schedule, told in ranks.each(step_with_a_keyword, ((1, 3, 5), (5, 3, 1))):
        assert told == [None] * 3, f"schedule {schedule}"


def train_in_subgroup(ctx, schedule, members):
    group = dist.new_group(members)
    if ctx.rank not in members:
        return {}
    return train(ctx, schedule, "Adam", group, members.index(ctx.rank))[0]


@check("ZERO-022", worlds=(3, 4), deadline_s=10)
def test_in_a_subgroup_uneven_inputs_train_as_one_process_does(ranks):
    members = upper_ranks(ranks.world)
    schedules = (scenario.one_long(len(members), 0), scenario.one_short(len(members), 0))
    for schedule, told in ranks.each(train_in_subgroup, schedules, members):
        assert told == [{}] * ranks.world, f"schedule {schedule}"


# -- closures, and the gradients that are left


def train_with_closures(ctx, kind, schedule):
    """Each step is given a closure that does a whole iteration; whether it returned the loss, and the gaps.

    ``kind``: of the optimizer, if that is none of torch's; it steps as plain SGD does.
    """
    name = "Adam" if kind is None else "SGD"
    model = models.Sum(3).to(ctx.device)
    alone = Alone(ctx, model, name, schedule)
    ddp = ctx.subject.DistributedDataParallel(model)
    if kind is None:
        zero = sharded(ctx, model.parameters(), name)
    else:
        zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), kind, **OPTIMIZERS[name][1])
    losses, gaps = [], []
    with ctx.subject.Join([ddp, zero]):
        for iteration in range(schedule[ctx.rank]):

            def closure(iteration=iteration):
                zero.zero_grad()
                loss = ddp(whole(ctx.rank, iteration).to(ctx.device)).sum()
                loss.backward()
                return loss.item()

            losses.append(isinstance(zero.step(closure), float))
            alone.step(iteration)
            gaps.append(alone.gap(model))
    for iteration in range(schedule[ctx.rank], max(schedule)):
        alone.step(iteration)
    return all(losses), [*gaps, alone.gap(model)]


@check("ZERO-022", worlds=MANY, deadline_s=10)
def test_a_closure_may_hold_the_whole_iteration_on_uneven_inputs(ranks):
    schedule = scenario.linear(ranks.world, 1)
    for _, told in ranks.each(train_with_closures, (None, Asking), schedule):
        for rank, (returned, gaps) in enumerate(told):
            assert returned, f"rank {rank}: a step with a closure did not return the closure's loss"
            assert gaps == [None] * (schedule[rank] + 1), f"rank {rank}"


def train_with_a_hook_around(ctx, listed, schedule):
    """A subclass of the optimizer whose join hook is one of the user's around that of the class; calls, and gaps.

    ``listed``: first, last, or behind a second model, too, which is trained in every second iteration.
    """
    calls = []

    class Own(ctx.subject.ZeroRedundancyOptimizer):
        def join_hook(self, **kwargs):
            inner = super().join_hook(**kwargs)

            class Around(ctx.subject.JoinHook):
                def main_hook(self):
                    calls.append("main")
                    inner.main_hook()

                def post_hook(self, is_last_joiner):
                    calls.append("post")
                    inner.post_hook(is_last_joiner)

            return Around()

    model = models.Sum(3).to(ctx.device)
    alone = Alone(ctx, model, "Adam", schedule)
    ddp = ctx.subject.DistributedDataParallel(model)
    zero, gaps = Own(model.parameters(), OPTIMIZERS["Adam"][0], **OPTIMIZERS["Adam"][1]), []
    joinables = {"first": [zero, ddp], "last": [ddp, zero]}
    if listed == "behind two":
        second = ctx.subject.DistributedDataParallel(models.Sum(1).to(ctx.device))
        joinables[listed] = [ddp, second, zero]
    with ctx.subject.Join(joinables[listed]):
        for iteration in range(schedule[ctx.rank]):
            zero.zero_grad()
            ddp(whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
            if listed == "behind two" and iteration % 2:
                second(whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
            zero.step()
            alone.step(iteration)
            gaps.append(alone.gap(model))
    for iteration in range(schedule[ctx.rank], max(schedule)):
        alone.step(iteration)
    return calls, [*gaps, alone.gap(model)]


@check("ZERO-022", worlds=MANY, deadline_s=10)
def test_an_optimizer_may_have_a_join_hook_of_the_users_around_its_own(ranks):
    schedule = scenario.linear(ranks.world)
    for listed, told in ranks.each(train_with_a_hook_around, ("last", "first", "behind two"), schedule):
        for rank, (calls, gaps) in enumerate(told):
            assert calls == ["main"] * (max(schedule) - schedule[rank]) + ["post"], f"rank {rank}: listed {listed}"
            assert gaps == [None] * (schedule[rank] + 1), f"rank {rank}: listed {listed}"


def keep_gradients(ctx, schedule, cleared):
    """Whether each gradient is after the block what it was when this rank ran out; ``cleared``: none at all."""
    model = models.Sum(3).to(ctx.device)
    ddp = ctx.subject.DistributedDataParallel(model)
    zero = sharded(ctx, model.parameters())
    last = []
    with ctx.subject.Join([ddp, zero]):
        for iteration in range(schedule[ctx.rank]):
            zero.zero_grad()
            ddp(whole(ctx.rank, iteration).to(ctx.device)).sum().backward()
            zero.step()
            last = [parameter.grad.clone() for parameter in model.parameters()]
        if cleared or not last:
            zero.zero_grad(set_to_none=True)
            last = [None] * 6
    held = zip(last, [parameter.grad for parameter in model.parameters()], strict=True)
    return [grad is None if mine is None else grad is not None and torch.equal(mine, grad) for mine, grad in held]


@check("DDPJ-010", worlds=MANY, deadline_s=10)
def test_a_joined_rank_keeps_its_last_gradients_beside_a_sharded_optimizer(ranks):
    upwards = scenario.linear(ranks.world, 1)
    schedules = (upwards, upwards[::-1], scenario.without_inputs(ranks.world, 0))
    for way, told in ranks.each(keep_gradients, itertools.product(schedules, (False, True)), spread=True):
        assert told == [[True] * 6] * ranks.world, f"schedule and whether gradients are cleared: {way}"


# -- without DDP, and before it


def step_alone(ctx, jobs):
    """Join([zero]) over given gradients: where each job differs from the ordinary optimizer."""
    found = {}
    for schedule, name, grouped in jobs:
        params = some_parameters(ctx)
        reference = Reference(params, name, grouped)
        zero = sharded(ctx, grouped(params), name)
        gaps = {}
        with ctx.subject.Join([zero]):
            for iteration in range(schedule[ctx.rank]):
                for optimizer, targets in ((zero, params), (reference.optimizer, reference.parameters)):
                    give(targets, iteration, sparsely=True)
                    optimizer.step()
                gaps[iteration] = reference.gap(params)
        reference.train(range(schedule[ctx.rank], max(schedule)), sparsely=True)
        gaps["the end"] = reference.gap(params)
        found.update({f"{schedule}, {name}, {when}": gap for when, gap in gaps.items() if gap})
    return found


@check("ZERO-020", worlds=MANY, deadline_s=8)
def test_a_sharded_optimizer_may_be_the_only_joinable(ranks):
    names, schedules = list(OPTIMIZERS), [scenario.linear(ranks.world, 1), *scenario.uneven_shapes(ranks.world)]
    jobs = [
        (schedule, names[place % len(names)], (list, in_two_groups)[place % 2])
        for place, schedule in enumerate(schedules)
    ]
    assert ranks(step_alone, jobs) == [{}] * ranks.world


@check("ZERO-020", worlds=(2,), deadline_s=8)
def test_alone_every_pair_of_counts_steps_as_the_ordinary_optimizer_does(ranks):
    pairs = list(itertools.product(range(5), repeat=2))
    names = list(OPTIMIZERS)
    jobs = [(pair, names[place % len(names)], list) for place, pair in enumerate(pairs)]
    assert ranks(step_alone, jobs) == [{}] * 2


@check("ZERO-020", worlds=MANY, deadline_s=8)
def test_a_sharded_optimizer_may_be_listed_before_its_model(ranks):
    schedules = (scenario.linear(ranks.world, 1), scenario.one_long(ranks.world, 0))
    jobs = [(schedule, name, {"listed": ("zero", "ddp")}) for schedule in schedules for name in ("SGD", "Adam")]
    as_one_process(ranks, jobs)


# -- the hook


def use_the_hook(ctx, members):
    """Outside of any context: what the hook is, what its methods do, and what the optimizer says of itself."""
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    params = some_parameters(ctx)
    reference = Reference(params, "Adam")
    zero = sharded(ctx, params, "Adam", process_group=group)
    hook = zero.join_hook(divide_by_initial_world_size=False, anything=object())
    gaps = []
    for iteration in range(3):
        for targets in (params, reference.parameters):
            give(targets, iteration)
        hook.main_hook()
        reference.optimizer.step()
        gaps.append(reference.gap(params))
    before = len(ctx.trace())
    returned = [hook.post_hook(True), hook.post_hook(False)]
    quiet = len(ctx.trace()) == before and reference.gap(params) is None
    kinds = isinstance(zero, ctx.subject.Joinable), isinstance(hook, ctx.subject.JoinHook)
    place = zero.join_device == params[0].device, zero.join_process_group is group
    return gaps, returned, quiet, kinds, place


@check("ZERO-019")
def test_the_main_hook_steps_the_post_hook_does_nothing_and_keywords_are_ignored(ranks):
    members = upper_ranks(ranks.world) if ranks.world > 2 else list(range(ranks.world))
    results = ranks(use_the_hook, members, trace=True)
    expected = ([None] * 3, [None] * 2, True, (True, True), (True, True))
    assert [results[member] for member in members] == [expected] * len(members)
