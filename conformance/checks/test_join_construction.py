"""Building a join context: defaults, refusals, what is stamped on the joinables, and whose group and device count."""

import contextlib
import inspect
import re

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import join as torchs

from conformance.api.checking import check
from conformance.api.schedules import linear, one_short, promised_log
from conformance.fixtures.joinables import recorder, total, upper_ranks
from conformance.ranks import caught

DISABLED = (False, False, False)


def config(joinable):
    return tuple(joinable._join_config)


def read_the_signature(ctx):
    parameters = list(inspect.signature(ctx.subject.Join).parameters.values())
    a = recorder(ctx)
    ctx.subject.Join([a], False, True)
    b = recorder(ctx)
    ctx.subject.Join(joinables=[b], throw_on_early_termination=False, enable=True, foo=1)
    named = [(one.name, one.default) for one in parameters[1:3]]
    return parameters[0].name, named, parameters[3].kind.name, config(a)[:2], config(b)[:2], b.heard


@check("JOIN-010", worlds=(1,))
def test_join_is_enabled_and_does_not_throw_unless_told(ranks):
    assert ranks(read_the_signature) == [(
        "joinables", [("enable", True), ("throw_on_early_termination", False)], "VAR_KEYWORD",
        (False, True), (True, False), [{"foo": 1}],
    )]


def build_empty(ctx):
    if ctx.rank > 0:  # the others are not even there, so a collective could not end
        return None, len(ctx.trace())
    return caught(ctx.subject.Join, []), len(ctx.trace())


@check("JOIN-011", worlds=(1, 2), deadline_s=8)
def test_an_empty_list_of_joinables_is_refused_before_any_collective(ranks):
    (error, collectives), *_ = ranks(build_empty, trace=True)
    assert error is not None
    assert error.is_a(ValueError), error
    assert collectives == 0


def count_made_hooks(ctx, schedule):
    a, b = recorder(ctx), recorder(ctx, "b")
    join = ctx.subject.Join([a, b])
    made = [(len(a.hooks), len(b.hooks))]
    with join:
        for _ in range(schedule[ctx.rank]):
            a.step(), b.step()
            made.append((len(a.hooks), len(b.hooks)))
    made.append((len(a.hooks), len(b.hooks)))
    served = all(called is each.hooks[0] for each in (a, b) for called in each.called)
    return set(made), served, [len(each.called) for each in (a, b)]


@check("JOIN-012")
def test_each_joinable_makes_one_hook_which_serves_the_whole_context(ranks):
    schedule = linear(ranks.world)
    for rank, (made, served, calls) in enumerate(ranks(count_made_hooks, schedule)):
        due = max(schedule) - schedule[rank] + 1
        assert made == {(1, 1)}, f"rank {rank}: so many hooks were made of a and b, at one time or another: {made}"
        assert served, f"rank {rank}: another hook was called than the one made when the context was built"
        told = f"{calls[0]} times on that of a and {calls[1]} on that of b"
        assert calls == [due] * 2, f"rank {rank}: its hooks were called {told}, not {due} times each (main and post)"


def enter_again_and_again(ctx, epochs):
    """One context object, entered in each epoch; the error of each entry, the log, and how many hooks were made."""
    log, errors = [], []
    joinables = [recorder(ctx, name, log) for name in "ab"]
    join = ctx.subject.Join(joinables)
    for schedule in epochs:
        with contextlib.ExitStack() as stack:
            errors.append(caught(stack.enter_context, join))
            for _ in range(schedule[ctx.rank] if errors[-1] is None else 0):
                for each in joinables:
                    each.step()
    return errors, log, [len(each.hooks) for each in joinables]


@check("JOIN-012", "JOIN-025", deadline_s=8)
def test_a_context_that_is_entered_again_serves_the_next_epoch_with_the_same_hooks(ranks):
    # or refuses to: the documents neither promise nor refuse a second entry
    upwards = linear(ranks.world, 1)
    epochs = (upwards, upwards[::-1])
    told = ranks(enter_again_and_again, epochs)
    refuses = all(again is not None for (_, again), *_ in told)
    for rank, (errors, log, made) in enumerate(told):
        served = epochs[:1] if refuses else epochs
        assert errors[: len(served)] == [None] * len(served), f"rank {rank}: {errors}"
        assert log == [entry for schedule in served for entry in promised_log(schedule, rank, "ab")], f"rank {rank}"
        assert made == [1, 1]
    if refuses:
        ranks.at_limit("a context that has ended is not entered again")


def look_before_entering(ctx, throw, enable):
    a, b = recorder(ctx), recorder(ctx, "b")
    join = ctx.subject.Join([a, b], enable, throw)
    configs = config(a), config(b)
    early = a.step()  # before the with statement
    summed = None if early is None else total(early)
    with join:
        a.step(), b.step()
    return configs, summed


@check("JOIN-013", "JOIN-014")
def test_building_a_context_stamps_every_joinable_with_its_flags(ranks):
    for throw, told in ranks.each(look_before_entering, (False, True), True):
        for configs, summed in told:
            assert configs == ((True, throw, True), (True, throw, False))
            assert summed == ranks.world
    for throw, told in ranks.each(look_before_entering, (False, True), False):
        for configs, summed in told:
            assert [each[:2] for each in configs] == [(False, throw)] * 2
            assert summed is None


def stamp_twice(ctx):
    a, b, c = (recorder(ctx, name) for name in "abc")
    ctx.subject.Join([a, b, c])
    first = [config(each)[2] for each in (a, b, c)]
    ctx.subject.Join([c, a])
    return first, [config(each)[2] for each in (c, a)]


@check("JOIN-014", worlds=(1, 2))
def test_only_the_first_of_the_list_is_first_and_a_new_context_stamps_anew(ranks):
    assert ranks(stamp_twice) == [([True, False, False], [True, False])] * ranks.world


def build_over_two_groups(ctx):
    other = dist.new_group(list(range(ctx.world)))
    before = len(ctx.trace())
    errors, configs, notified = [], [], []
    for enable in (True, False):
        for groups in ((ctx.group, other), (other, ctx.group), (ctx.group, ctx.group, other)):
            joinables = [recorder(ctx, group=group) for group in groups]
            errors.append(caught(ctx.subject.Join, joinables, enable=enable))
            configs.extend(config(each) for each in joinables)
            notified.extend(each.notify() is None for each in joinables)
    return errors, configs, notified, len(ctx.trace()) - before


@check("JOIN-015")
def test_joinables_of_two_process_groups_are_refused_enabled_or_not(ranks):
    for errors, *_ in ranks(build_over_two_groups):
        for error in errors:
            assert error is not None
            assert error.is_a(ValueError), error


def join_on_the_group_of_all_ranks(ctx):
    """One names no group, which is that of all ranks; another names that; and in a context inside one names none."""
    a, b, c = recorder(ctx, "a"), recorder(ctx, "b", group=dist.group.WORLD), recorder(ctx, "c")
    a.group = c.group = None
    with ctx.subject.Join([a, b]):
        with ctx.subject.Join([c]):
            for _ in range(1 + ctx.rank):
                c.step()
        for _ in range(1 + ctx.rank):
            a.step(), b.step()
    return [each.log.count(f"{each.name} main") for each in (a, b, c)]


@check("JOIN-015", worlds=(2, 3), beyond=False)
def test_no_group_and_that_of_all_ranks_are_one(ranks):
    expected = [[shadowed] * 3 for shadowed in reversed(range(ranks.world))]
    assert ranks(join_on_the_group_of_all_ranks) == expected


@check("JOIN-018", worlds=(1, 2))
def test_a_failed_construction_leaves_no_joinable_enabled(ranks):
    for _, configs, notified, collectives in ranks(build_over_two_groups, trace=True):
        assert configs == [DISABLED] * 14
        assert all(notified), "after a construction that failed some joinable still notifies"
        assert collectives == 0


def join_on_two_devices(ctx, order):
    joinables = [recorder(ctx, device, device=device) for device in order]

    def use():
        with ctx.subject.Join(joinables):
            for _ in range(1 + ctx.rank):
                for each in joinables:
                    each.step()

    refused = caught(lambda: ctx.subject.Join([recorder(ctx, device=device) for device in order]))
    return refused, caught(use), joinables[0].log.count(f"{order[0]} main")


@check("JOIN-016", worlds=(1, 2), backends=("gloo",), deadline_s=10)
def test_the_context_communicates_on_the_first_joinables_device(ranks):
    # Gloo cannot communicate on the meta device, so a context that works does not use it and one that uses it fails
    for rank, (refused, error, mains) in enumerate(ranks(join_on_two_devices, ["cpu", "meta"])):
        assert refused is None, f"joinables on two devices were refused: {refused}"
        assert error is None, f"another device than the first joinable's was used: {error}"
        assert mains == ranks.world - 1 - rank
    for refused, error, _ in ranks(join_on_two_devices, ["meta", "cpu"]):
        assert refused is None
        assert error is not None, "the second joinable's device was used"


def throw_in_a_subgroup(ctx, schedule):
    members = upper_ranks(ctx.world)
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    a = recorder(ctx, group=group)

    def train():
        with ctx.subject.Join([a], throw_on_early_termination=True):
            for _ in range(schedule[ctx.rank - 1]):
                a.step()

    return caught(train)


@check("JOIN-017", worlds=(3, 4))
def test_ranks_in_errors_are_ranks_of_the_joinables_group(ranks):
    members = upper_ranks(ranks.world)
    for short in range(len(members)):
        schedule = one_short(len(members), short)
        errors = ranks(throw_in_a_subgroup, schedule)[1:]
        assert errors[short] is not None
        named = re.findall(r"(?<!global )\brank (\d+)", errors[short].text, re.IGNORECASE)
        assert set(named) == {str(short)}, errors[short].text


def list_one_twice(ctx):
    a = recorder(ctx)
    error = caught(ctx.subject.Join, [a, a])
    if error is not None:
        return error, config(a), None
    return None, config(a), a.notify() is not None


@check("JOIN-019", worlds=(1, 2))
def test_one_joinable_listed_twice_is_refused_or_still_notifies(ranks):
    for error, stamped, notified in ranks(list_one_twice):
        if error is not None:
            assert any(error.is_a(kind) for kind in (ValueError, TypeError)), error
            assert stamped == DISABLED
        else:
            assert notified, "nobody notifies in this context: ranks that run out would wait for ever"


def build_with_strangers(ctx):
    seen = []
    for stranger in (object(), None, nn.Linear(1, 1), ctx.subject.JoinHook()):
        for at in (0, 1):
            a = recorder(ctx)
            listed = [stranger, a] if at == 0 else [a, stranger]
            seen.append((type(stranger).__name__, caught(ctx.subject.Join, listed), len(a.hooks), config(a)))
    return seen


@check("JOIN-020", worlds=(1, 2))
def test_something_that_is_no_joinable_is_refused_before_any_joinable_is_touched(ranks):
    for seen in ranks(build_with_strangers):
        for kind, error, hooks, stamped in seen:
            assert error is not None
            assert error.is_a(TypeError), error
            assert hooks == 0, f"beside a {kind}"
            assert stamped == DISABLED, f"beside a {kind}"


def build_without_a_device(ctx):
    """The first joinable's device is a plain method; whether that was refused, and what became of the second one."""
    plain = type("Called", (type(recorder(ctx)),), {"join_device": lambda self: self.device})
    a = recorder(ctx)
    return caught(ctx.subject.Join, [plain(), a]) is not None, len(a.hooks), config(a)


@check("JOIN-020", worlds=(1, 2))
def test_a_device_that_is_none_is_refused_before_any_joinable_is_touched_if_it_is_refused(ranks):
    for refused, hooks, stamped in ranks(build_without_a_device):
        assert not refused or (hooks, stamped) == (0, DISABLED)


def train_in_the_join_of_torch(ctx, enable, schedule):
    """DDP under torch's own Join: the weight that comes of it, or the error that refused it."""
    model = ctx.subject.DistributedDataParallel(nn.Linear(1, 1, bias=False))
    nn.init.zeros_(model.module.weight)
    step = torch.optim.SGD(model.parameters(), lr=1.0)
    try:
        context = torchs.Join([model], enable=enable)
    except Exception as error:
        return str(error)
    with context:
        for _ in range(schedule[ctx.rank]):
            step.zero_grad()
            model(torch.full((1, 1), float(ctx.world))).sum().backward()
            step.step()
    return model.module.weight.item()


@check("JOIN-056", worlds=(1, 2, 3), deadline_s=20)
def test_a_model_in_the_join_of_another_implementation_trains_or_is_refused_at_construction(ranks):
    told = ranks(train_in_the_join_of_torch, True, linear(ranks.world, 1))
    assert len(set(told)) == 1
    if isinstance(told[0], str):
        assert "join" in told[0].lower()
    else:  # iteration i has world - i active ranks
        assert told[0] == -sum(ranks.world - i for i in range(ranks.world))


@check("JOIN-056", worlds=(1, 2), deadline_s=20)
def test_a_disabled_join_of_another_implementation_leaves_training_alone(ranks):
    assert ranks(train_in_the_join_of_torch, False, (2,) * ranks.world) == [-2.0 * ranks.world] * ranks.world
