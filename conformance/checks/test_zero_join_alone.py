"""What joined ranks must hear of a sharded optimizer alone in its context: closures, thawed parameters, states."""

import copy
import itertools
import math

import torch
from torch import nn

from conformance.api import schedules as scenario
from conformance.api.checking import MANY, check
from conformance.fixtures.observing import assert_refused
from conformance.fixtures.sharding import (
    Asking,
    Looking,
    Reference,
    Twice,
    first_gap,
    give,
    in_two_groups,
    sharded,
    some_parameters,
    step_by_sums,
)
from conformance.ranks import caught


def with_one_apart(params):
    """The last parameter in a group of its own, so that most ranks own nothing of that."""
    return [{"params": params[:-1]}, {"params": params[-1:]}]


def step_with_closures(ctx, schedule):
    """Steps that are given a closure, which sets gradients and rates; the last rank saves a rate that it has changed
    since. Gaps after each step and at the end, and the error of saving."""
    params, error = some_parameters(ctx), None
    reference, zero = Reference(params, "Adam", with_one_apart), sharded(ctx, with_one_apart(params), "Adam")
    gaps = []

    def step(optimizer, targets, iteration):
        def closure():
            give(targets, iteration)
            for group in optimizer.param_groups:
                group["lr"] = 0.5 / (1 + iteration)
            return iteration

        return optimizer.step(closure)

    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            gaps.append(None if step(zero, params, iteration) == iteration else "the loss is lost")
            step(reference.optimizer, reference.parameters, iteration)
            gaps.append(reference.gap(params))
        if schedule[ctx.rank] == max(schedule):
            zero.param_groups[1]["lr"] = 1.0
            error = caught(zero.consolidate_state_dict, ctx.rank)
            saved = 1.0 if error else zero.state_dict()["param_groups"][1]["lr"]
            gaps.append(None if saved == 1.0 else f"a rate of {saved} is saved")
    for iteration in range(schedule[ctx.rank], max(schedule)):
        step(reference.optimizer, reference.parameters, iteration)
    return [gap for gap in [*gaps, reference.gap(params)] if gap], error


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_steps_with_closures_may_be_all_that_a_context_holds(ranks):
    several = (scenario.linear(ranks.world, 1), scenario.one_long(ranks.world, 0))
    for schedule, told in ranks.each(step_with_closures, several):
        gaps, errors = zip(*told, strict=True)
        assert gaps == ([],) * ranks.world, f"schedule {schedule}"
        if any(errors):
            ranks.at_limit("the state cannot be consolidated while ranks have joined")


def evaluate_elsewhere(ctx, schedule, kind):
    """Gradients that depend on all parameters, after some have been moved; the error, and the gap after this rank's
    last step."""
    params = some_parameters(ctx)
    alone = [nn.Parameter(parameter.detach().clone()) for parameter in params]
    zero, ordinary = ctx.subject.ZeroRedundancyOptimizer(params, kind, lr=0.25), kind(alone, lr=0.25)

    def train():
        with ctx.subject.Join([zero]):
            for _ in range(schedule[ctx.rank]):
                step_by_sums(zero, params)

    error = caught(train)
    for _ in range(max(schedule)):
        step_by_sums(ordinary, alone)
    return error, first_gap(params, alone)


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_closures_that_are_evaluated_twice_in_a_context_are_right_or_refused(ranks):
    for kind in (Twice, Looking):
        told = ranks(evaluate_elsewhere, tuple(1 + rank for rank in range(ranks.world)), kind)
        for _, gap in ranks(evaluate_elsewhere, (2,) * ranks.world, kind):
            assert gap is None
        if any(error for error, _ in told):
            assert_refused([error for error, _ in told], RuntimeError, "closure")
            ranks.at_limit("a closure that is evaluated twice in a step is refused where a rank has run out")
        else:
            assert [gap for _, gap in told] == [None] * ranks.world


def thaw_later(ctx, schedule, thawed):
    """From the last iteration but one on some parameters are trained that were frozen; the gap at the end."""
    params = some_parameters(ctx)
    for place in thawed:
        params[place].requires_grad_(False)
    reference, zero = Reference(params), sharded(ctx, params)

    def go_on(optimizer, targets, iteration):
        if iteration == max(schedule) - 2:
            for place in thawed:
                targets[place].requires_grad_(True)
        give(targets, iteration)
        optimizer.step()

    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            go_on(zero, params, iteration)
    for iteration in range(max(schedule)):
        go_on(reference.optimizer, reference.parameters, iteration)
    return reference.gap(params)


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_parameters_that_live_ranks_thaw_are_trained_on_joined_ranks_too(ranks):
    schedules = [scenario.one_long(ranks.world, last, 1) for last in (0, ranks.world - 1)]
    several = itertools.product(schedules, ((0, 3), (1, 2, 4)))
    for (schedule, thawed), told in ranks.each(thaw_later, several, spread=True):
        assert told == [None] * ranks.world, f"schedule {schedule}, parameters {thawed}"


def step_with_graphs(ctx, schedule):
    """Gradients have a graph of their own, as those of ``backward(create_graph=True)``; the gap at the end."""
    params = some_parameters(ctx)
    reference = Reference(params, "SGD with momentum and decay")
    zero = sharded(ctx, params, "SGD with momentum and decay")
    one = torch.ones((), device=ctx.device, requires_grad=True)
    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            give(params, iteration)
            for parameter in params:
                parameter.grad = parameter.grad * one
            zero.step()
    reference.train(range(max(schedule)))
    return reference.gap(params)


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_gradients_with_a_graph_of_their_own_reach_the_shards_of_ranks_that_have_joined(ranks):
    several = (scenario.linear(ranks.world, 1), scenario.one_long(ranks.world, 0))
    for schedule, told in ranks.each(step_with_graphs, several):
        assert told == [None] * ranks.world, f"schedule {schedule}"


def add_later(ctx, schedule):
    """Who is left adds a group before the last iteration but one: its error, and the gap of the others at the end."""
    *params, more = some_parameters(ctx, 6)
    reference, zero, error = Reference(params, "Adam"), sharded(ctx, params, "Adam"), None
    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            if iteration == max(schedule) - 2:
                error = caught(zero.add_param_group, {"params": [more]})
            give([*params, more], iteration)
            zero.step()
    reference.train(range(max(schedule)))
    return error, reference.gap(params)


def with_one_long(ranks, program):
    """The rank that goes on alone (the first, then the last), its error, a RuntimeError if any, and what all found."""
    schedules = [scenario.one_long(ranks.world, last, 1) for last in (0, ranks.world - 1)]
    for schedule, told in ranks.each(program, schedules):
        last = schedule.index(max(schedule))
        error = told[last][0]
        assert error is None or error.is_a(RuntimeError), f"rank {last} has the longest run: {error}"
        yield last, error, told


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_a_group_that_a_live_rank_adds_is_refused_or_changes_nothing_for_the_others(ranks):
    for last, error, told in with_one_long(ranks, add_later):
        assert [gap for _, gap in told] == [None] * ranks.world, f"rank {last} has the longest run, {error}"


def load_later(ctx, schedule):
    """Who is left loads a state before the last iteration but one: its error; the gaps at the end, with and without."""
    params = some_parameters(ctx)
    other = Reference(params, "Adam")
    give(other.parameters, 20)
    other.optimizer.step()
    state = other.optimizer.state_dict()
    references = {True: Reference(params, "Adam"), False: Reference(params, "Adam")}
    zero, error = sharded(ctx, params, "Adam"), None
    with ctx.subject.Join([zero]):
        for iteration in range(schedule[ctx.rank]):
            if iteration == max(schedule) - 2:
                error = caught(zero.load_state_dict, copy.deepcopy(state))
            give(params, iteration)
            zero.step()
    for loads, reference in references.items():
        for iteration in range(max(schedule)):
            if loads and iteration == max(schedule) - 2:
                reference.optimizer.load_state_dict(copy.deepcopy(state))
            give(reference.parameters, iteration)
            reference.optimizer.step()
    return error, {loads: reference.gap(params) for loads, reference in references.items()}


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_a_state_that_a_live_rank_loads_is_refused_or_stepped_from_on_joined_ranks_too(ranks):
    for last, error, told in with_one_long(ranks, load_later):
        gaps = [found[error is None] for _, found in told]
        assert gaps == [None] * ranks.world, f"rank {last} has the longest run, {error}"


def rearrange_before_a_closure(ctx, schedule, kind):
    """All of a context's steps have closures; while all have inputs a parameter is added to a group, and before the
    last step but one and in the last one's closure they change their order. The gap at the end, but for the first one,
    which holds what is no number.
    """
    params, copies = some_parameters(ctx, 6), some_parameters(ctx, 6)
    for targets in (params, copies):
        targets[0].data[0] = math.nan

    def train(optimizer, targets, iterations):
        listed = optimizer.param_groups[0]["params"]
        for iteration in range(iterations):
            if iteration == 1:
                listed.append(targets[5])
            if iteration == max(schedule) - 2:
                listed.reverse()

            def closure(iteration=iteration):
                give(targets, iteration)
                if iteration == max(schedule) - 1:
                    listed.append(listed.pop(0))

            optimizer.step(closure)

    zero = ctx.subject.ZeroRedundancyOptimizer(params[:5], kind, lr=0.25)
    with ctx.subject.Join([zero]):
        train(zero, params, schedule[ctx.rank])
    train(kind(copies[:5], lr=0.25), copies, max(schedule))
    return first_gap(params[1:], copies[1:])


@check("ZERO-022", worlds=MANY, deadline_s=8, beyond=False)
def test_what_changes_in_groups_before_a_step_with_a_closure_is_seen_in_a_context(ranks):
    schedule = scenario.one_long(ranks.world, 0, 2)
    for rank, gap in enumerate(ranks(rearrange_before_a_closure, schedule, Asking)):
        assert gap is None, f"rank {rank}, schedule {schedule}: {gap}"


def cast(params, _):
    for parameter in params:
        parameter.grad, parameter.data = None, parameter.data.double()


def grow(params, _):
    for parameter in params:
        parameter.grad, parameter.data = None, torch.cat([parameter.data, parameter.data])


def append(params, optimizer):
    params += [nn.Parameter(parameter.detach().clone()) for parameter in params]  # so that every rank owns some
    optimizer.param_groups[0]["params"] = params


def replace(params, optimizer):
    params[:] = [nn.Parameter(parameter.detach().clone()) for parameter in params]  # which have no momentum
    optimizer.param_groups[0]["params"] = params


def change_later(ctx, schedule, change):
    """Who is left changes the parameters before the last iteration but one: the error, and there the gap at the end."""
    params = some_parameters(ctx)
    copies = [nn.Parameter(parameter.detach().clone()) for parameter in params]

    def train(optimizer, targets, iterations):
        for iteration in range(iterations):
            if iteration == max(schedule) - 2:
                change(targets, optimizer)
            give(targets, iteration)
            optimizer.step()

    def train_in_a_context():
        zero = sharded(ctx, params[:])
        with ctx.subject.Join([zero]):
            train(zero, params, schedule[ctx.rank])

    error = caught(train_in_a_context)
    ordinary = Reference(copies)
    train(ordinary.optimizer, ordinary.parameters, max(schedule))
    return error, ordinary.gap(params) if schedule[ctx.rank] == max(schedule) else None


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_parameters_that_a_live_rank_casts_reshapes_or_adds_are_refused_or_stepped(ranks):
    for change in (cast, grow, append, replace):
        errors, gaps = zip(*ranks(change_later, scenario.one_long(ranks.world, 0, 1), change), strict=True)
        if any(errors):
            assert_refused(errors, RuntimeError, "parameters")
            assert errors[0].text in errors[1].text, f"{change.__name__}: {errors[1]}"
        else:
            assert gaps == (None,) * ranks.world, change.__name__


def rearrange_later(ctx, job):
    """Who is left changes the groups before the last iteration but one; before the context all have taken a parameter
    out, which the others learn in it if they have no inputs: the gap at the end, and what is left of a setting that is
    dropped together with the change, on every rank."""
    change, few = job
    params, schedule = some_parameters(ctx, 8), scenario.one_long(ctx.world, 0, few)
    ordinary = Reference(params, "SGD with momentum and decay", in_two_groups)

    def train(optimizer, targets, iterations):
        for iteration in range(iterations):
            if iteration == max(schedule) - 2:
                change(optimizer.param_groups)
                del optimizer.param_groups[0]["note"]
            give(targets, iteration)
            optimizer.step()

    zero = sharded(ctx, in_two_groups(params), "SGD with momentum and decay")
    for optimizer in (zero, ordinary.optimizer):
        optimizer.param_groups[0]["note"] = "of the program's"
        optimizer.param_groups[1]["params"].pop()
    with ctx.subject.Join([zero]):
        train(zero, params, schedule[ctx.rank])
    train(ordinary.optimizer, ordinary.parameters, max(schedule))
    return ordinary.gap(params), zero.param_groups[0].get("note")


def turn_around(groups):
    for group in groups:
        group["params"].reverse()


def let_most_change_groups(groups):
    first, second = (group["params"] for group in groups)
    first[:], second[:] = second[1:], [*first, second[0]]


def save_behind_a_change(ctx, schedule, change, last):
    """Who is left changes the groups behind its last step and consolidates: its error, and whether on rank ``last``
    each parameter has a momentum of its own."""
    params = some_parameters(ctx, 8)
    ordinary = Reference(params, "SGD with momentum and decay", in_two_groups)
    zero = sharded(ctx, in_two_groups(params), "SGD with momentum and decay")

    def train(optimizer, targets, iterations):
        for iteration in range(iterations):
            give(targets, iteration)
            optimizer.step()
        if iterations == max(schedule):
            change(optimizer.param_groups)

    error = None
    with ctx.subject.Join([zero]):
        train(zero, params, schedule[ctx.rank])
        if schedule[ctx.rank] == max(schedule):
            error = caught(zero.consolidate_state_dict, last)
    train(ordinary.optimizer, ordinary.parameters, max(schedule))
    if error is not None or ctx.rank != last:
        return error, None
    states = [each.state_dict()["state"] for each in (zero, ordinary.optimizer)]
    momenta = [[each["momentum_buffer"] for _, each in sorted(state.items())] for state in states]
    return None, first_gap(*momenta) or (None if len(momenta[0]) == len(momenta[1]) else "some states are lost")


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_what_live_ranks_save_behind_a_change_of_groups_is_in_their_order_on_joined_ranks_too(ranks):
    for change in (turn_around, let_most_change_groups):
        told = ranks(save_behind_a_change, scenario.one_long(ranks.world, 0, 1), change, 0)
        if told[0][0] is not None:
            assert_refused([told[0][0]], RuntimeError)
            ranks.at_limit("the state cannot be consolidated while ranks have joined")
        assert told[0][1] is None, f"{change.__name__}: {told[0][1]}"


@check("ZERO-020", worlds=MANY, deadline_s=8, beyond=False)
def test_joined_ranks_step_parameters_in_the_groups_to_which_live_ones_have_moved_them(ranks):
    jobs = [(turn_around, 1), (let_most_change_groups, 0), (let_most_change_groups, 1)]
    for (change, few), gaps in ranks.each(rearrange_later, jobs):
        assert gaps == [(None, None)] * ranks.world, f"{change.__name__}, {few} inputs"
