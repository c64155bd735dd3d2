"""notify_join_context: who communicates, when it blocks, where it goes, and what it assumes of the training loop."""

import copy
import inspect
from datetime import timedelta

import torch
import torch.distributed as dist

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.api.schedules import deficits, linear, promised_log, shapes
from conformance.fixtures import models
from conformance.fixtures.joinables import recorder, total, upper_ranks, walker
from conformance.fixtures.training import ddp
from conformance.ranks import caught


def notify_all(ctx):
    joinables = [recorder(ctx, name) for name in "abc"]
    with ctx.subject.Join(joinables):
        handles, started = [], []
        for each in joinables:
            before = len(ctx.trace())
            handles.append(each.notify())
            started.append(len(ctx.trace()) - before)
        handles[0].wait()
        return [handle is None for handle in handles], started, handles[0].is_completed()


@check("JOIN-048")
def test_only_the_first_joinable_communicates_and_returns_a_handle(ranks):
    assert ranks(notify_all, trace=True) == [([False, True, True], [1, 0, 0], True)] * ranks.world


def read_the_handle(ctx):
    """The number of active ranks by the handle's own result and by its future."""
    each = recorder(ctx)
    with ctx.subject.Join([each]):
        handle = each.notify()
        handle.wait()
        by_future = handle.get_future().wait()
        return [[value.tolist() for value in found] for found in (handle.result(), by_future)]


def notify_beside_a_model(ctx):
    """Who is given a handle, by the place of the model in the list; the model is notified for by hand, too."""
    told = []
    for first in (True, False):
        a, model = recorder(ctx), ddp(ctx, models.scalar())
        with ctx.subject.Join([model, a] if first else [a, model]):
            handles = [ctx.subject.Join.notify_join_context(each) for each in ((model, a) if first else (a, model))]
            told.append([None if handle is None else total(handle) for handle in handles])
    return told


@check("JOIN-048")
def test_beside_a_model_too_only_the_first_joinable_returns_a_handle(ranks):
    assert ranks(notify_beside_a_model) == [[[float(ranks.world), None]] * 2] * ranks.world


@check("JOIN-031")
def test_a_handles_result_and_its_future_hold_the_number_of_active_ranks(ranks):
    assert ranks(read_the_handle) == [[[[ranks.world]]] * 2] * ranks.world


def wait_for_a_moment(ctx):
    """All ranks but the last wait a moment for their handles; the last one notifies when they have given that up."""
    a = recorder(ctx)
    error = None
    with ctx.subject.Join([a]):
        if ctx.rank == ctx.world - 1:
            ctx.store.wait([f"tired/{rank}" for rank in range(ctx.world - 1)])
            handle = a.notify()
        else:
            handle = a.notify()
            error = caught(handle.wait, timedelta(seconds=0.1))
            ctx.store.set(f"tired/{ctx.rank}", "1")
        return error is not None, total(handle)


@check("JOIN-048", worlds=(2, 3), backends=("gloo",), deadline_s=8, beyond=False)
def test_a_handle_waits_no_longer_than_it_is_told(ranks):
    assert ranks(wait_for_a_moment) == [(rank < ranks.world - 1, ranks.world) for rank in range(ranks.world)]


def notify_without_a_group(ctx):
    a = recorder(ctx)
    base = type(a)

    class Homeless(base):
        @property
        def join_process_group(self):
            raise LookupError("nobody may ask for the group")

        @property
        def join_device(self):
            raise LookupError("nobody may ask for the device")

    return dist.is_initialized(), a.notify() is None, ctx.subject.Join.notify_join_context(Homeless()) is None


@check("JOIN-049", worlds=(1,))
def test_outside_a_context_a_notification_asks_for_no_group_and_returns_nothing(ranks):
    assert ranks(notify_without_a_group, init=False) == [(False, True, True)]


class Forgetful:
    """Mixed into a joinable: its constructor forgets the base classes."""

    def __init__(self):
        self.name = "forgetful"


def notify_forgetful(ctx):
    base = type(recorder(ctx))
    forgetful = type("ForgetfulJoinable", (Forgetful, base), {})()
    return caught(ctx.subject.Join.notify_join_context, forgetful)


@check("JOIN-050", worlds=(1,))
def test_a_joinable_that_forgot_the_base_constructor_is_named(ranks):
    [error] = ranks(notify_forgetful, init=False)
    assert error is not None
    assert error.is_a(AssertionError)
    assert "ForgetfulJoinable" in error.text


def notify_ahead(ctx):
    """The last rank notifies only after every other rank has come out of its own notification."""
    a = recorder(ctx)
    with ctx.subject.Join([a]):
        if ctx.rank == ctx.world - 1:
            ctx.store.wait([f"out/{rank}" for rank in range(ctx.world - 1)])
            return total(a.notify())
        handle = a.notify()
        early = handle.is_completed()
        ctx.store.set(f"out/{ctx.rank}", "1")
        return "complete without the last rank" if early else total(handle)


@check("JOIN-051", worlds=MANY, deadline_s=8)
def test_a_notification_returns_before_the_other_ranks_notify(ranks):
    assert ranks(notify_ahead) == [ranks.world] * ranks.world


def notify_in_a_subgroup(ctx):
    group = dist.new_group(upper_ranks(ctx.world))
    if ctx.rank == 0:
        return None
    a = recorder(ctx, group=group)
    with ctx.subject.Join([a]):
        return total(ctx.subject.Join.notify_join_context(a))


def notify_after_moving(ctx, throw):
    """A joinable that moves to another group after the context was built, before it notifies."""
    group = dist.new_group(upper_ranks(ctx.world))
    a = recorder(ctx)
    ctx.subject.Join([a], throw_on_early_termination=throw)
    a.group = group
    return None if ctx.rank == 0 else total(a.notify())


def notify_from_another_device(ctx, throw):
    """A joinable that comes from a device on which nobody can communicate, after the context was built."""
    a = recorder(ctx, device="meta")
    ctx.subject.Join([a], throw_on_early_termination=throw)
    a.device = ctx.device
    return total(a.notify())


def is_static(ctx):
    return isinstance(inspect.getattr_static(ctx.subject.Join, "notify_join_context"), staticmethod)


@check("JOIN-052", worlds=(1,))
def test_notifying_needs_no_context_object(ranks):
    assert ranks(is_static, init=False) == [True]


@check("JOIN-052", worlds=(3, 4), deadline_s=8)
def test_a_notification_involves_only_the_joinables_own_group(ranks):
    assert ranks(notify_in_a_subgroup) == [None] + [ranks.world - 1] * (ranks.world - 1)


@check("JOIN-052", worlds=(3, 4), deadline_s=8)
def test_a_notification_reads_the_group_from_the_joinable_at_the_moment_of_the_call(ranks):
    for throw, told in ranks.each(notify_after_moving, (False, True)):
        assert told == [None] + [ranks.world - 1] * (ranks.world - 1), f"{throw=}"


@check("JOIN-052", worlds=MANY, deadline_s=8)
def test_a_notification_reads_the_device_from_the_joinable_at_the_moment_of_the_call(ranks):
    for throw, told in ranks.each(notify_from_another_device, (False, True)):
        assert told == [ranks.world] * ranks.world, f"{throw=}"


def step_again(joinable):
    if joinable.log.count("a main") > 20:  # where each shadow keeps the other ranks shadowing
        raise AssertionError("this rank shadows for ever")
    joinable.step()


def shadow_by_stepping(ctx, schedule):
    """Two joinables whose main hooks call their own ordinary steps, which notify; one of them communicates as well."""
    a = recorder(ctx, main=step_again)
    with ctx.subject.Join([a]):
        counts = [total(handle) for handle in [a.step() for _ in range(schedule[ctx.rank])]]
    places = []
    for beside in ([], [ddp(ctx, models.scalar())]):
        lazy = walker(ctx, shadow_by_step=True)
        with ctx.subject.Join([*beside, lazy]):
            for iteration in range(schedule[ctx.rank]):
                for model in beside:
                    model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                lazy.step(1.0 + ctx.rank + iteration)
        places.append(lazy.places)
    return counts, a.log.count("a main"), places


def walked_alone(schedule):
    places = [0.0]
    for iteration in range(max(schedule)):
        active = oracle.active_ranks(schedule, iteration)
        places.append(places[-1] * 0.5 + sum(1.0 + rank + iteration for rank in active))
    return places


@check("JOIN-055", worlds=(2, 4), deadline_s=8)
def test_a_main_hook_may_call_its_own_step_which_then_notifies_nobody(ranks):
    several = (linear(ranks.world, 1), shapes(ranks.world)["no inputs on rank 0"])
    for schedule, told in ranks.each(shadow_by_stepping, several):
        for rank, (counts, mains, places) in enumerate(told):
            assert counts == [len(oracle.active_ranks(schedule, i)) for i in range(schedule[rank])]
            assert mains == deficits(schedule)[rank]
            assert places == [walked_alone(schedule)] * 2


def step_in_the_post_hook(ctx, schedule):
    """A joinable that takes one more step, with its notification, when everybody has run out; what that adds up to."""
    sums = []

    def once_more(joinable, _last):
        joinable.notify()
        mine = torch.tensor([1.0 + ctx.rank], device=ctx.device)
        dist.all_reduce(mine)
        sums.append(mine.item())

    a = recorder(ctx, post=once_more)
    with ctx.subject.Join([a]):
        for _ in range(schedule[ctx.rank]):
            a.step()
    return sums, a.log


@check("JOIN-055", deadline_s=8)
def test_a_post_hook_may_notify_on_ranks_that_ran_out_early_and_on_those_that_did_not(ranks):
    schedule = linear(ranks.world, 1)
    for rank, (sums, log) in enumerate(ranks(step_in_the_post_hook, schedule)):
        assert sums == [sum(range(1, ranks.world + 1))]
        assert log == promised_log(schedule, rank, ["a"])


def step_in_the_post_hook_of_who_came_last(ctx, schedule):
    """Only ranks that came last notify in their post hook; what they get, and what all add up afterwards."""
    told = []

    def once_more(joinable, last):
        before = len(ctx.trace())
        handle = joinable.notify() if last else None
        told.append((handle is None, len(ctx.trace()) - before))

    a = recorder(ctx, post=once_more)
    with ctx.subject.Join([a]):
        for _ in range(schedule[ctx.rank]):
            a.step()
    mine = torch.tensor([1.0 + ctx.rank], device=ctx.device)
    dist.all_reduce(mine)
    return told, mine.item()


@check("JOIN-055", worlds=MANY, deadline_s=8)
def test_a_post_hook_that_notifies_on_the_last_ranks_only_costs_no_collective(ranks):
    schedule = linear(ranks.world, 1)
    for rank, seen in enumerate(ranks(step_in_the_post_hook_of_who_came_last, schedule, trace=True)):
        assert seen == ([(True, 0)], sum(range(1, ranks.world + 1))), f"rank {rank}"


# -- JOIN-031: a copy that is made inside the block


def notify_by_a_copy(ctx, throw):
    """The numbers of active ranks that the first joinable gets and, each time, a copy of it."""
    each, told = recorder(ctx), []
    with ctx.subject.Join([each], throw_on_early_termination=throw):
        for _ in range(2):
            twin = copy.copy(each)
            twin.__dict__.update(copy.deepcopy({name: getattr(each, name) for name in vars(each) if "join" in name}))
            handles = each.notify(), twin.notify()
            assert None not in handles, "a notification has counted nobody"
            told += map(total, handles)
    return told


@check("JOIN-031", worlds=(1, 2, 3), deadline_s=8)
def test_a_copy_that_is_made_inside_the_block_counts_the_active_ranks_too(ranks):
    for throw, told in ranks.each(notify_by_a_copy, (False, True)):
        assert told == [[ranks.world] * 4] * ranks.world, f"{throw=}"
