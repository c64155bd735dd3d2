"""What a context leaves behind: the skew warning, the warning filters, the joinables' configs."""

import copy
import pickle
import re
import warnings

import torch.distributed as dist

from conformance.api.checking import MANY, check
from conformance.api.schedules import linear, promised_log
from conformance.fixtures import models
from conformance.fixtures.joinables import module, recorder, upper_ranks
from conformance.fixtures.training import ddp, gradient, scalar_means
from conformance.ranks import caught

DISABLED = (False, False, False)


def shadow_for_long(ctx, skew, upper):
    """One rank has no inputs, the others ``skew``; the texts of all warnings of this process that were shown."""
    group = dist.new_group(upper_ranks(ctx.world)) if upper else ctx.group
    if upper and ctx.rank == 0:
        return []
    idle = dist.get_rank(group) == 0
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        a = recorder(ctx, group=group)
        with ctx.subject.Join([a]):
            for number in range(0 if idle else skew):
                handle = a.notify()
                if number % 100 == 99:
                    handle.wait()  # keeps the number of handshakes in flight small
    return [(each.category.__name__, str(each.message)) for each in shown if "skew" in str(each.message)]


@check("JOIN-035", worlds=(2,), deadline_s=30)
def test_a_rank_that_shadows_a_thousand_iterations_is_not_yet_warned(ranks):
    assert ranks(shadow_for_long, 1000, False) == [[], []]


@check("JOIN-035", worlds=(2,), deadline_s=30)
def test_a_rank_that_shadows_more_than_a_thousand_iterations_is_warned_and_others_are_not(ranks):
    warned, active = ranks(shadow_for_long, 1001, False)
    assert active == []
    assert len(warned) == 1, "no warning, or more than one"
    category, text = warned[0]
    assert category == "UserWarning"
    assert re.search(r"\brank 0\b", text, re.IGNORECASE)
    assert "1000" in text


@check("JOIN-017", "JOIN-035", worlds=(3,), deadline_s=30, beyond=False)
def test_the_skew_warning_names_the_rank_inside_the_group(ranks):
    outside, warned, active = ranks(shadow_for_long, 1001, True)
    assert outside == active == []
    assert len(warned) == 1, "no warning, or more than one"
    _, text = warned[0]
    assert re.search(r"(?<!global )\brank 0\b", text, re.IGNORECASE)
    assert not re.search(r"(?<!global )\brank 1\b", text, re.IGNORECASE)


@check("JOIN-036", worlds=(2,), deadline_s=30)
def test_the_skew_warning_is_shown_once_however_long_the_skew(ranks):
    warned, active = ranks(shadow_for_long, 1500, False)
    assert (len(warned), len(active)) == (1, 0)


def compare_filters(ctx, schedule):
    before = list(warnings.filters)
    a = recorder(ctx)
    with ctx.subject.Join([a]):
        for _ in range(schedule[ctx.rank]):
            a.step()
    return [str(each) for each in warnings.filters if each not in before], len(warnings.filters) - len(before)


@check("JOIN-037")
def test_a_context_leaves_the_processs_warning_filters_as_they_were(ranks):
    for schedule, told in ranks.each(compare_filters, ((2,) * ranks.world, linear(ranks.world))):
        assert told == [([], 0)] * ranks.world, f"schedule {schedule}"


def leave(ctx, way):
    """Leave a context in one of several ways; the joinables' configs afterwards, and what stepping them does."""
    a, b = recorder(ctx), recorder(ctx, "b")

    def train():
        with ctx.subject.Join([a, b], way != "disabled", way == "throw"):
            for _ in range(2 if way in ("even", "disabled") else 1 + ctx.rank):
                a.step(), b.step()
            if way == "another built inside":
                ctx.subject.Join([b])  # and never entered
            if way == "error":
                for _ in range(ctx.world - 1 - ctx.rank):  # so that nobody leaves while another still counts on it
                    a.step()
                raise LookupError("spilled the tea")

    caught(train)
    before = len(ctx.trace())
    configs = [tuple(each._join_config) for each in (a, b)]
    return configs, [each.step() is None for each in (a, b)], len(ctx.trace()) - before


def leaves_nothing(ranks, *ways):
    for way in ways:
        for seen in ranks(leave, way, trace=True):
            assert seen == ([DISABLED, DISABLED], [True, True], 0), f"after leaving: {way}"


@check("JOIN-038")
def test_after_a_context_its_joinables_are_disabled_again_and_steps_cost_nothing(ranks):
    leaves_nothing(ranks, "even", "uneven", "another built inside")


@check("JOIN-038", worlds=(1, 2))
def test_after_a_context_that_an_error_ended_its_joinables_are_disabled_again(ranks):
    leaves_nothing(ranks, "error")


@check("JOIN-038", worlds=MANY)
def test_after_a_context_that_threw_its_joinables_are_disabled_again(ranks):
    leaves_nothing(ranks, "throw")


@check("JOIN-038", worlds=(1, 2))
def test_after_a_disabled_context_its_joinables_are_as_fresh(ranks):
    leaves_nothing(ranks, "disabled")


def train_after_the_context(ctx, schedule):
    """A context, then more steps on rank 0 alone: possible only if nothing is sent any more."""
    a = recorder(ctx)
    with ctx.subject.Join([a]):
        for _ in range(schedule[ctx.rank]):
            a.step()
    alone = [a.step() is None for _ in range(3 if ctx.rank == 0 else 0)]
    with ctx.subject.Join([a]):  # and a joinable serves again in a later context
        again = [a.step() is not None for _ in range(schedule[ctx.world - 1 - ctx.rank])]
    return all(alone), all(again), a.log.count("a main")


@check("JOIN-038", worlds=(2, 3), deadline_s=5)
def test_one_rank_may_go_on_alone_after_the_context_and_the_joinable_serves_again(ranks):
    schedule = linear(ranks.world, 1)
    for silent, notified, mains in ranks(train_after_the_context, schedule):
        assert silent, "after the context a rank that goes on alone notifies"
        assert notified, "in the later context the joinable does not notify"
        assert mains == ranks.world - 1  # its deficits in the two contexts together


def leave_in_the_order_of_entering(ctx, ways):
    """Two contexts over the same joinables, of which the first one entered is left first; configs on the way."""
    told = []
    for kind in ways:
        a = ddp(ctx, models.scalar()) if kind == "model" else recorder(ctx)
        act = iterate_once if kind == "model" else one_step
        outer, inner = ctx.subject.Join([a]), ctx.subject.Join([a])
        outer.__enter__()
        act(ctx, a)
        inner.__enter__()
        act(ctx, a)
        outer.__exit__(None, None, None)
        between = a._join_config.enable
        act(ctx, a)
        inner.__exit__(None, None, None)
        before = len(ctx.trace())
        after = tuple(a._join_config)
        found = act(ctx, a)
        told.append((between, after, found, control_messages(ctx.trace()[before:])))
    return told


def one_step(_ctx, joinable):
    return joinable.step() is None


def iterate_once(ctx, model):
    model.zero_grad()
    model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    return gradient(model.module.weight)


def control_messages(events):
    return [str(event) for event in events if event.dtype.startswith("int") or "uint" in event.dtype]


@check("JOIN-038", worlds=(2, 3), deadline_s=8)
def test_after_a_context_that_is_left_before_the_one_inside_it_nothing_stays_enabled(ranks):
    (mean,) = scalar_means((1,) * ranks.world)
    for told in ranks(leave_in_the_order_of_entering, ("recorder", "model"), trace=True):
        for (between, after, found, control), right in zip(told, (True, mean), strict=True):
            assert between, "the context that is still open was taken off"
            assert (after, found, control) == (DISABLED, right, []), "after leaving: in the order of entering"


def copy_a_model_inside(ctx):
    """Copies of a model are made inside a block and serve after it."""
    ctx.subject.require("pickling")
    model = ddp(ctx, models.scalar())
    with ctx.subject.Join([model]):
        iterate_once(ctx, model)
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    configs, before = [tuple(each._join_config) for each in twins], len(ctx.trace())
    found = [iterate_once(ctx, twin) for twin in twins]
    silent = control_messages(ctx.trace()[before:])
    for twin in twins:
        with ctx.subject.Join([twin]):
            found.append(iterate_once(ctx, twin))
        configs.append(tuple(twin._join_config))
    return configs, found, silent


def copy_a_joinable_inside(ctx):
    """The copy of a joinable beside a model is made inside a block and serves after it: rank 0's alone."""
    model, beside = ddp(ctx, models.scalar()), module(ctx)
    with ctx.subject.Join([model, beside]):
        iterate_once(ctx, model), beside.step()
        twin = copy.deepcopy(beside)
    before = len(ctx.trace())
    alone = twin.step() is None if ctx.rank == 0 else True
    return tuple(twin._join_config), alone, len(ctx.trace()) - before


@check("JOIN-038", worlds=(1, 2, 3), deadline_s=8, beyond=False)
def test_after_a_block_copies_of_a_model_that_were_made_inside_are_bound_by_no_context(ranks):
    (mean,) = scalar_means((1,) * ranks.world)
    for seen in ranks(copy_a_model_inside, trace=True):
        assert seen == ([DISABLED] * 4, [mean] * 4, []), f"after leaving: {seen}"


@check("JOIN-038", worlds=(1, 2, 3), deadline_s=8, beyond=False)
def test_after_a_block_a_copy_of_a_joinable_that_was_made_inside_is_bound_by_no_context(ranks):
    for config, *seen in ranks(copy_a_joinable_inside, trace=True):
        assert seen == [True, 0], f"after leaving: whether its step was silent, and collectives: {seen}"
        if config != DISABLED:
            ranks.at_limit("the copy of a joinable, made inside a block, keeps the config that it had there")


def build_all_first(ctx, epochs):
    """The contexts of all epochs are built before the first is entered; the log, and a model's gradients."""
    log, model = [], ddp(ctx, models.scalar())
    a, b = recorder(ctx, "a", log), recorder(ctx, "b", log)
    plain = [ctx.subject.Join([a, b]) for _ in epochs]
    with_model = [model.join() for _ in epochs]
    for context, schedule in zip(plain, epochs, strict=True):
        with context:
            for _ in range(schedule[ctx.rank]):
                a.step(), b.step()
    seen = []
    for context, schedule in zip(with_model, epochs, strict=True):
        with context:
            for iteration in range(schedule[ctx.rank]):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                seen.append(gradient(model.module.weight))
    return log, seen


@check("JOIN-013", "JOIN-025", "DDPJ-034", worlds=MANY, deadline_s=8)
def test_contexts_that_are_all_built_before_the_first_is_entered_serve_one_after_the_other(ranks):
    upwards = linear(ranks.world, 1)
    epochs = (upwards, upwards[::-1], upwards)
    for rank, (log, seen) in enumerate(ranks(build_all_first, epochs)):
        assert log == [entry for schedule in epochs for entry in promised_log(schedule, rank, "ab")], f"rank {rank}"
        means = [mean for schedule in epochs for mean in scalar_means(schedule)[: schedule[rank]]]
        assert seen == means, f"rank {rank}"
