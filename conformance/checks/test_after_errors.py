"""After a call that was refused, and after an error that was caught on all ranks, training goes on as if without it."""

import pickle
import time

import torch
from torch import nn

from conformance.api import oracle
from conformance.api.checking import MANY, check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done, summing
from conformance.fixtures.errors import BadBatch, Wrong, complains_of_backward, each_and_on, fail
from conformance.fixtures.observing import TINY_MIB, mean_of_all, mine, trained, wrapped
from conformance.fixtures.training import gradient, gradients, numbers, private
from conformance.ranks import caught

WORLDS = (2,)


def as_if_without(ranks, function, *, on_purpose=False):
    """What a subject accepts is for other checks to judge. ``on_purpose``: all that fails does so by its own error."""
    told = ranks(function, trace=True)
    for rank, several in enumerate(told):
        for one in several:
            if one.refused:
                ranks.at_limit("after a backward that failed, the next forward is refused")
                return  # what comes after it has nothing to go on
            assert not one.gap, f"rank {rank}, after {one.name} ({one.error}): {one.gap}"
            assert not on_purpose or one.error.is_a(BadBatch), f"rank {rank}, {one.name}: {one.error}"
    assert any(one.error is not None for several in told for one in several), "nothing was refused at all"


# -- calls of a model under DDP


def noting(trainee):
    """A hook of the user's, which notes what it is given and sums up."""

    def hook(_state, bucket):
        trainee.heard.append((bucket.index(), bucket.is_last(), bucket.buffer().numel()))
        if trainee.raises and bucket.index() == trainee.raises - 1:
            fail()
        return summing(None, bucket)

    trainee.ddp.register_comm_hook(None, hook)


def built_in(trainee):
    kind = trainee.ctx.subject.BuiltinCommHookType.ALLREDUCE
    private(trainee.ddp, "_register_builtin_comm_hook")(kind)


def unused_keys(trainee):
    trainee.ddp.load_state_dict({**trainee.ddp.state_dict(), "module.nobody": torch.ones(1)})


def in_no_sync(trainee):
    with trainee.ddp.no_sync():
        fail()


def annotated(state, bucket: int):
    return done(bucket)


def pickled(trainee):
    pickle.dumps(trainee.ddp)


NEVER_ENDS, FAILS = 1, 2


def promising(trainee):
    """A buffer hook that returns a future; that of an iteration which goes wrong fails or is never completed."""

    def hook(_state, _buffers):
        future = torch.futures.Future()
        if trainee.raises == FAILS:
            future.set_exception(BadBatch("of the iteration before"))
        elif not trainee.raises:
            future.set_result(None)
        return [future]

    private(trainee.ddp, "_register_buffer_comm_hook")(None, hook)


def fused(trainee):
    private(trainee.ddp, "_register_fused_optim")(torch.optim.SGD, lr=0.5)


CALLS = {
    "a second hook": Wrong(lambda t: t.ddp.register_comm_hook(None, summing), make=noting),
    "a built-in hook beside one": Wrong(built_in, make=noting),
    "a hook beside a built-in one": Wrong(noting, make=built_in),
    "a fused optimizer beside a hook": Wrong(fused, make=noting),
    "a hook that cannot be called": Wrong(lambda t: t.ddp.register_comm_hook(None, 3)),
    "a hook with a wrong annotation": Wrong(lambda t: t.ddp.register_comm_hook(None, annotated)),
    "a built-in hook of no kind": Wrong(lambda t: private(t.ddp, "_register_builtin_comm_hook")("none")),
    "a fused optimizer that cannot step": Wrong(lambda t: private(t.ddp, "_register_fused_optim")(torch.optim.SGD)),
    "a buffer hook that cannot be called": Wrong(lambda t: private(t.ddp, "_register_buffer_comm_hook")(None, 3)),
    "a buffer hook of no place": Wrong(lambda t: private(t.ddp, "_register_buffer_comm_hook")(None, fail, "later")),
    "a sampling rate of zero": Wrong(lambda t: private(t.ddp, "_set_ddp_runtime_logging_sample_rate")(0)),
    "keys that nobody has": Wrong(unused_keys, {"gradient_as_bucket_view": True}),
    "a block of no_sync that fails": Wrong(in_no_sync),
    "a model pickled without a group": Wrong(pickled, own_group=True),
}


def refuse_each(ctx):
    return each_and_on(ctx, CALLS)


@check("DDP-019", "COMM-007", worlds=WORLDS, deadline_s=15)
def test_after_a_call_that_is_refused_training_goes_on_as_if_it_had_not_been_made(ranks):
    as_if_without(ranks, refuse_each)


# -- contexts


def alone_in_the_body(trainee):
    """One rank's error ends the block on all of them, in which nobody has trained."""
    with trainee.ddp.join():
        fail()


def nested(trainee):
    with trainee.ddp.join(), trainee.ddp.join():
        fail()


def throwing(trainee):
    """All raise before the last rank, the only one with inputs, has trained."""
    with trainee.ddp.join(throw_on_early_termination=True):
        for _ in range(trainee.ctx.rank):
            trainee.loss(50)


def entered_twice(trainee):
    context = trainee.ctx.subject.Join([trainee.ddp])
    with context, context:
        pass


def by_parameters(trainee):
    """Then nobody can shadow, and a context may be refused where it is entered."""
    private(trainee.ddp, "_register_accum_grad_hook")()


def entered_anyway(trainee):
    with trainee.ddp.join():
        fail()


BLOCKS = {
    "a context without anything": Wrong(lambda t: t.ctx.subject.Join([])),
    "a context with what is no joinable": Wrong(lambda t: t.ctx.subject.Join([t.ddp, 3])),
    "a context that was entered twice": Wrong(entered_twice),
    "a body that failed": Wrong(alone_in_the_body),
    "a body that failed, nested": Wrong(nested, {"gradient_as_bucket_view": True}),
    "a context that threw": Wrong(throwing),
    "a context that cannot be entered": Wrong(entered_anyway, make=by_parameters, even=True),
}


def leave_each(ctx):
    return each_and_on(ctx, BLOCKS)


@check("JOIN-038", worlds=WORLDS)
def test_training_goes_on_as_if_without_a_context_that_was_refused_or_left_by_an_error(ranks):
    as_if_without(ranks, leave_each)


# -- sharded optimizers


def sharded(trainee):
    zero = trainee.ctx.subject.ZeroRedundancyOptimizer
    trainee.optimizer = zero(trainee.ddp.parameters(), torch.optim.SGD, lr=2.0**-6, momentum=0.5)


def adds(**group):
    def act(trainee):
        made = {name: make() for name, make in group.items()}
        trainee.optimizer.add_param_group(made)

    return act


def loads_two_groups(trainee):
    trainee.optimizer.consolidate_state_dict(0)
    if trainee.ctx.rank == 0:
        state = trainee.optimizer.state_dict()
        state["param_groups"] *= 2
        trainee.optimizer.load_state_dict(state)
    fail()


def steps_with_a_closure_that_fails(trainee):
    trainee.optimizer.step(closure=fail)


STEPS = {
    "a group without parameters": Wrong(adds(lr=lambda: 0.5), make=sharded),
    "a group of no parameters": Wrong(adds(params=lambda: [3]), make=sharded),
    "a parameter twice": Wrong(
        lambda t: t.optimizer.add_param_group({"params": list(t.ddp.parameters())[:1]}), make=sharded
    ),
    "parameters of two kinds": Wrong(
        adds(params=lambda: [torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float, torch.double)]),
        make=sharded,
    ),
    "a parameter that is no leaf": Wrong(
        lambda t: t.optimizer.add_param_group({"params": [2 * next(t.ddp.parameters())]}), make=sharded
    ),
    "a state of other groups": Wrong(loads_two_groups, make=sharded),
    "a state that was not gathered": Wrong(lambda t: t.optimizer.state_dict(), make=sharded),
    "a state for nobody": Wrong(lambda t: t.optimizer.consolidate_state_dict(t.ctx.world), make=sharded),
    "a closure that fails": Wrong(steps_with_a_closure_that_fails, make=sharded),
}


def refuse_each_step(ctx):
    return each_and_on(ctx, STEPS)


@check("ZERO-008", worlds=WORLDS)
def test_after_a_call_of_a_sharded_optimizer_that_is_refused_training_goes_on_as_if_without(ranks):
    as_if_without(ranks, refuse_each_step)


# -- errors of an iteration, caught on all ranks


def fails_in(where):
    return lambda trainee: trainee.failing(where)


def fails_in_loss(trainee):
    trainee.optimizer.zero_grad()
    trainee.loss(50)
    fail()


def fails_in_hook(bucket):
    def act(trainee):
        trainee.raises = bucket + 1
        try:
            trainee.failing("")
        finally:
            trainee.raises = 0

    return act


def fails_in_evaluation(trainee):
    trainee.ddp.eval()
    try:
        with torch.no_grad():
            trainee.failing("forward")
    finally:
        trainee.ddp.train()


def fails_in_accumulation(where):
    def act(trainee):
        with trainee.ddp.no_sync():
            trainee.failing(where)

    return act


def fails_in_a_penalty(trainee):
    """Between a forward and its backward the penalty on a weight, which adds nothing, fails behind that weight."""
    told = []
    for penalised in (True, False):
        trainee.optimizer.zero_grad()
        loss = trainee.loss(50)
        first, second = (trainee.ddp.module.layers[place].weight for place in (0, 1))
        beside = second * 0.0
        beside.register_hook(fail)
        if penalised:
            assert caught((beside.sum() + (first * 0.0).sum()).backward) is not None
        loss.backward()
        told.append(gradients(trainee.ddp.module))
    assert told[0] == told[1], f"beside a penalty that failed {told[0]}, and without it {told[1]}"
    fail()


def fails_after_a_gradient(trainee):
    """In what a user has hung behind the accumulation of the parameter that comes last."""
    with trainee.ddp.module.layers[0].weight.register_post_accumulate_grad_hook(fail):
        trainee.failing("")


WAYS = {
    "plain": {},
    "search and views": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "static": {"static_graph": True},
}
BEFORE = {
    "forward": fails_in("forward"), "loss": fails_in_loss, "evaluation": fails_in_evaluation,
    "forward in no_sync": fails_in_accumulation("forward"),
}  # fmt: skip
AMID = {
    "backward": fails_in("backward"), "backward in no_sync": fails_in_accumulation("backward"),
    "penalty": fails_in_a_penalty, "behind a gradient": fails_after_a_gradient,
}  # fmt: skip


def fails_beside_a_future(end):
    def act(trainee):
        trainee.raises = end
        try:
            trainee.failing("backward")
        finally:
            trainee.raises = 0

    return act


FUTURES = {
    f"backward beside a future that {name}": Wrong(fails_beside_a_future(end), make=promising, even=True)
    for name, end in (("never ends", NEVER_ENDS), ("fails", FAILS))
}


def fails_late(trainee):
    """On one rank, when the others have gone on and wait for it in the next iteration."""
    time.sleep(LATE_S * trainee.ctx.rank)
    trainee.failing("backward")


LATE_S = 0.1
LATE = {f"backward, late on one rank, {way}": Wrong(fails_late, WAYS[way]) for way in ("plain", "search and views")}
HOOKS = {f"hook, bucket {bucket}": Wrong(fails_in_hook(bucket), make=noting) for bucket in (0, 1)}


def everywhere(errors, *, beside=False):
    return {
        f"{name}, {way}": Wrong(act, options, accumulates="no_sync" in name, beside=beside and way == "static")
        for way, options in WAYS.items() for name, act in errors.items()
    }  # fmt: skip


def fail_before_each(ctx):
    return each_and_on(ctx, everywhere(BEFORE))


def fail_amid_each(ctx):
    return each_and_on(ctx, {**everywhere(AMID, beside=True), **LATE, **HOOKS, **FUTURES})


@check("DDP-049", worlds=WORLDS, deadline_s=15)
def test_after_a_forward_or_loss_that_failed_everywhere_training_goes_on_as_if_without(ranks):
    as_if_without(ranks, fail_before_each, on_purpose=True)


@check("DDP-049", worlds=WORLDS, deadline_s=15)
def test_after_a_backward_that_failed_everywhere_training_goes_on_as_if_without(ranks):
    as_if_without(ranks, fail_amid_each, on_purpose=True)


# -- a rank goes on while what it has sent before the error is still on its way


def two_layers():
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for place, parameter in enumerate(module.parameters()):
        nn.init.constant_(parameter, 1.0 + place)
    return module


def fail_and_go_on_before_the_others(ctx, options):
    """The gradients after a backward that failed amid its buckets, which rank 1 comes to when rank 0 is in the next.

    None where that one is refused.
    """
    model = wrapped(ctx, two_layers(), bucket_cap_mb=TINY_MIB, **options)
    last = model.module[0].weight  # of the parameters that a backward comes to
    for iteration in range(2):  # then the buckets follow the order of arrival
        trained(model, models.divisible(ctx.rank, iteration).to(ctx.device))
    if ctx.rank:
        ctx.store.wait([f"gone on {options}"])
    with last.register_hook(fail):
        assert caught(trained, model, models.divisible(ctx.rank, 2).to(ctx.device)) is not None
    said = last.register_hook(lambda _: ctx.store.set(f"gone on {options}", ""))
    refused = caught(trained, model, models.divisible(ctx.rank, 3).to(ctx.device))
    ctx.store.set(f"gone on {options}", "")
    said.remove()
    return None if refused else gradients(model)


def fail_and_go_on_in_each_way(ctx, ways):
    return [fail_and_go_on_before_the_others(ctx, options) for options in ways]


@check("DDP-049", worlds=MANY, beyond=False)
def test_after_a_backward_that_failed_what_is_on_its_way_meets_nothing_of_the_next(ranks):
    ways = [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}]
    batches = [models.divisible(rank, 3) for rank in range(ranks.world)]
    expected = numbers(oracle.averaged_gradients(two_layers(), batches, ranks.world).items())
    for rank, told in enumerate(ranks(fail_and_go_on_in_each_way, ways)):
        for options, found in zip(ways, told, strict=True):
            if found is None:
                ranks.at_limit("after a backward that failed, the next forward is refused")
            else:
                assert found == expected, f"rank {rank}, {options}"


# -- a backward that failed is tried again, or another one takes its place


def fail_and_try_again(ctx, options):
    """Backwards that fail where they enter the model; the gradients of the next, through that forward or another one.

    No forward comes in between.
    """
    model, told = wrapped(ctx, models.Parts(), bucket_cap_mb=TINY_MIB, **options), []
    for iteration in range(4):
        seeds = [2 * iteration, 2 * iteration + 1][: 1 + iteration % 2]
        outputs = [model(models.divisible(ctx.rank, seed).to(ctx.device)) for seed in seeds]
        with outputs[0].register_hook(fail):
            assert caught(lambda output=outputs[0]: output.sum().backward(retain_graph=True)) is not None
        model.zero_grad(set_to_none=True)
        outputs[-1].sum().backward()
        told.append(gradients(model))
        model.zero_grad(set_to_none=True)
    return told


def fail_and_try_again_in_every_way(ctx):
    return {name: fail_and_try_again(ctx, options) for name, options in WAYS.items()}


@check("DDP-049", worlds=MANY, beyond=False)
def test_a_backward_that_follows_a_failed_one_is_averaged(ranks):
    world = ranks.world
    inputs = [[models.divisible(rank, 2 * n + n % 2) for rank in range(world)] for n in range(4)]
    expected = [numbers(oracle.averaged_gradients(models.Parts(), each, world).items()) for each in inputs]
    assert ranks(fail_and_try_again_in_every_way) == [dict.fromkeys(WAYS, expected)] * world


# -- and one of another model, with which the failed one's has a layer in common


def fail_in_one_of_two(ctx, options):
    """Of two models with their first layer in common one fails, in its own layer, before the other goes on. The error
    that ends this and whether a forward has raised it, and the gradients."""
    shared, told, outputs = models.scalar().to(ctx.device), [], []
    pair = [wrapped(ctx, nn.Sequential(shared, models.scalar()), **options) for _ in range(2)]

    def train():
        for place, fails in enumerate((False, False, False, False, True, False, False, False)):
            model = pair[place % 2 if place < 6 else 7 - place]  # twice in a row, behind the failure
            model.zero_grad()
            if fails:
                with model.module[1].weight.register_hook(fail):
                    assert caught(model(mine(ctx)).sum().backward) is not None
            else:
                outputs.append(model(mine(ctx)))
                outputs[-1].sum().backward()
                told.append([gradient(layer.weight) for layer in model.module])

    error = caught(train)
    return error, len(outputs) == len(told), told


@check("DDP-049", worlds=MANY, beyond=False, scenarios=WAYS)
def test_what_one_model_has_failed_in_is_no_part_of_anothers_backwards(ranks, scenario):
    for rank, (error, in_forward, told) in enumerate(ranks(fail_in_one_of_two, scenario)):
        if error is not None and in_forward and complains_of_backward(error.text):
            ranks.at_limit("after a backward that failed, the next forward is refused")
            return
        assert error is None, f"rank {rank}: {error}"
        assert told == [[mean_of_all(ranks.world)] * 2] * 7, f"rank {rank}"
