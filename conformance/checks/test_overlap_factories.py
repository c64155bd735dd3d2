"""The two factories of overlapping hooks: what they take, what they refuse, what they leave behind."""

import gc
import inspect
import weakref

import torch
import torch.distributed as dist

from conformance.api.checking import check
from conformance.fixtures import models, overlapping
from conformance.fixtures.observing import assert_refused
from conformance.fixtures.overlapping import Overlap, assert_as_alone, factory_of, iterations, optimizer_of, pair_of
from conformance.fixtures.training import ddp, parameters, private
from conformance.ranks import caught

FACTORIES = ("hook_with_zero_step", "hook_with_zero_step_interleaved")
ARGUMENTS = ["hook", "ddp", "zero", "shard_buckets"]
HOOKS = {"sequential": False, "interleaved": True}


@check("HOOK-001", "HOOK-002", worlds=(1,))
def test_two_factories_take_a_hook_a_model_and_an_optimizer_and_do_not_shard_unless_told(ranks):
    assert sorted(private(ranks.subject.ddp_zero_hook, "__all__")) == sorted(FACTORIES)
    for name in FACTORIES:
        arguments = inspect.signature(getattr(ranks.subject, name)).parameters
        assert list(arguments)[:4] == ARGUMENTS
        required = [key for key, argument in arguments.items() if argument.default is inspect.Parameter.empty]
        assert required == ARGUMENTS[:3]
        assert arguments["shard_buckets"].default is False


# -- what the factories leave in the optimizer


def info_of(zero):
    """What an overlapping optimizer knows of its hook; the clauses name these two fields."""
    info = private(zero, "_overlap_info")
    return info.shard_buckets, info.total_size


def make_hooks(ctx):
    """For both factories: what the optimizer knows after a call without a word of shards, and after one with."""
    group = overlapping.group_of(ctx)
    hook = ctx.subject.default_hooks.allreduce_hook
    found = []
    for interleaved in (False, True):
        for options in ({}, {"shard_buckets": True}):
            model = ddp(ctx, models.Sum().to(ctx.device), process_group=group)
            zero = optimizer_of(ctx, model.parameters(), "sgd", group)
            factory_of(ctx, interleaved)(hook, model, zero, **options)
            found.append(info_of(zero))
    return found


@check("HOOK-002", "HOOK-006", worlds=(1, 2))
def test_the_optimizer_is_told_whether_buckets_are_sharded(ranks):
    for found in ranks(make_hooks):
        assert found == [(False, None), (True, 0)] * 2


def hand_over_one_that_steps_by_itself(ctx, group):
    hook = ctx.subject.default_hooks.allreduce_hook
    model = ddp(ctx, models.Sum().to(ctx.device), process_group=group)
    zero = optimizer_of(ctx, model.parameters(), "sgd", group, overlap_with_ddp=False)
    return [caught(factory_of(ctx, interleaved), hook, model, zero, True) for interleaved in (False, True)]


def hand_over_in_any_group(ctx):
    return hand_over_one_that_steps_by_itself(ctx, overlapping.group_of(ctx))


def hand_over_on_the_default_group(ctx):
    """The two refusals on the default group, and what the second leaves in an optimizer that was built for overlap."""
    refused = hand_over_one_that_steps_by_itself(ctx, None)
    left = []
    for interleaved in (False, True):
        model = ddp(ctx, models.Sum().to(ctx.device))
        zero = optimizer_of(ctx, model.parameters(), "sgd", None)
        error = caught(factory_of(ctx, interleaved), ctx.subject.default_hooks.allreduce_hook, model, zero, True)
        left.append((error, info_of(zero)))
    return refused, left


@check("HOOK-003", worlds=(1, 2))
def test_an_optimizer_that_steps_by_itself_is_refused(ranks):
    for errors in zip(*ranks(hand_over_in_any_group), strict=True):
        assert_refused(errors, ValueError)


@check("HOOK-005", worlds=(1, 2))
def test_the_optimizer_is_looked_at_before_the_backend_and_a_refusal_leaves_no_trace(ranks):
    for refused, left in ranks(hand_over_on_the_default_group):
        assert_refused(refused, ValueError)
        for error, info in left:
            assert info == ((True, 0) if error is None else (False, None))


# -- HOOK-018: an optimizer that has more than the model


def overlap_more_than_the_model(ctx):
    """By factory: the error, else what is left of a parameter of nobody's that has a gradient of one each time."""
    told, group = [], overlapping.group_of(ctx)
    for interleaved in (False, True):
        model = ddp(ctx, models.Sum().to(ctx.device), process_group=group)
        beside = torch.nn.Parameter(torch.ones(3, device=ctx.device))
        zero = optimizer_of(ctx, [*model.parameters(), beside], "sgd", group)
        pair = overlapping.Pair(model, zero, group, ctx.rank)

        def train(pair=pair, beside=beside, interleaved=interleaved):
            pair.ddp.register_comm_hook(pair.group, overlapping.hook_of(ctx, pair.ddp, pair.zero, interleaved))
            for number in range(ITERATIONS):
                beside.grad = torch.ones_like(beside)
                overlapping.iteration(pair, number)

        told.append((caught(train), beside.tolist()))
    return told


ITERATIONS = 6


@check("HOOK-018", worlds=(1, 2), deadline_s=5.0)
def test_a_parameter_that_the_model_does_not_have_is_refused_or_stepped(ranks):
    right = [[1 - 0.25 * updates] * 3 for updates in range(ITERATIONS - 3, ITERATIONS + 1)]
    for told in ranks(overlap_more_than_the_model):
        for error, held in told:
            assert error is not None or held in right, f"neither refused nor stepped: {held}"


# -- HOOK-004


def overlap_on_gloo(ctx):
    """For both factories: why they refuse the default group, or a few iterations on it."""
    return [attempt(ctx, Overlap(interleaved)) for interleaved in (False, True)]


def attempt(ctx, how):
    pairs = []
    error = caught(lambda: pairs.append(pair_of(ctx, how, dist.group.WORLD)))
    return error, None if error else iterations(pairs[0])


@check("HOOK-004", worlds=(1, 2, 3), backends=("gloo",), deadline_s=5.0)
def test_gloo_is_refused_by_name_or_trained_on_as_one_process_does(ranks):
    for interleaved, found in zip((False, True), zip(*ranks(overlap_on_gloo), strict=True), strict=True):
        errors, runs = zip(*found, strict=True)
        if any(errors):
            assert_refused(errors, RuntimeError, "gloo")
        else:
            assert True in assert_as_alone(runs, Overlap(interleaved))


# -- HOOK-007, HOOK-008


def make_and_register(ctx, interleaved):
    """Train beside a hook that nobody has registered, then with one that was; whether parameters changed."""
    group = overlapping.group_of(ctx)
    model = ddp(ctx, models.Sum().to(ctx.device), process_group=group, bucket_cap_mb=overlapping.CAP_MIB)
    zero = optimizer_of(ctx, model.parameters(), "momentum", group)
    made = factory_of(ctx, interleaved)(overlapping.settled, model, zero)
    beside = overlapping.Pair(model, zero, group, dist.get_rank(group))
    before = parameters(beside.model)
    unregistered = iterations(beside)
    still = all(one.parameters == before for one in unregistered)
    state = getattr(zero, "optim", None) is None or not zero.optim.state
    inspect.signature(made).bind(None, "bucket")
    registered = iterations(pair_of(ctx, Overlap(interleaved, hook=overlapping.settled), group))
    return still, state, registered[-1].parameters != before


@check("HOOK-007", worlds=(1, 2, 3), scenarios=HOOKS, deadline_s=5.0)
def test_the_hook_does_nothing_until_it_is_registered_which_ddp_accepts(ranks, scenario):
    assert ranks(make_and_register, scenario) == [(True, True, True)] * ranks.world


def register_elsewhere(ctx, interleaved):
    """Register a model's hook with another model: what its backward raises, and whether the first stays as it was."""
    group = overlapping.group_of(ctx)
    first, other = (ddp(ctx, models.Sum().to(ctx.device), process_group=group) for _ in range(2))
    zero = optimizer_of(ctx, first.parameters(), "momentum", group)
    other.register_comm_hook(group, factory_of(ctx, interleaved)(overlapping.settled, first, zero))
    before = parameters(first)
    data = torch.ones(2, 4, device=ctx.device)
    errors = [caught(other(data).sum().backward) for _ in range(4)]
    return next(filter(None, errors), None), parameters(first) == before


@check("HOOK-007", worlds=(2, 3), scenarios=HOOKS, deadline_s=5.0, beyond=False)
def test_a_hook_that_is_registered_with_another_model_is_refused_or_does_nothing(ranks, scenario):
    errors, stayed = zip(*ranks(register_elsewhere, scenario), strict=True)
    if any(errors):
        assert_refused(errors, RuntimeError, "model")
    assert all(stayed), "gradients of another model are stepped with"


def drop_the_model(ctx):
    group = overlapping.group_of(ctx)
    alive = []
    for interleaved in (False, True):
        model = ddp(ctx, torch.nn.Linear(4, 4).to(ctx.device), process_group=group)
        zero = optimizer_of(ctx, model.parameters(), "sgd", group)
        made = factory_of(ctx, interleaved)(ctx.subject.default_hooks.allreduce_hook, model, zero)
        held = weakref.ref(model)
        del model
        gc.collect()
        alive.append((held() is not None, made is None))
        alive.append(drop_the_trained_model(ctx, interleaved, group))
    return alive


def drop_the_trained_model(ctx, interleaved, group):
    """The same of a model that was trained with the hook, which somebody else holds on to."""
    made = []

    def outer(hook):
        made.append(hook)
        return lambda state, bucket: made[0](state, bucket)

    pair = pair_of(ctx, Overlap(interleaved, hook=overlapping.settled), group, outer)
    iterations(pair)
    held = weakref.ref(pair.ddp)
    del pair
    gc.collect()
    return held() is not None, made == []


@check("HOOK-008", worlds=(1, 2))
def test_the_hook_does_not_keep_the_model_alive(ranks):
    assert ranks(drop_the_model) == [[(False, False)] * 4] * ranks.world
