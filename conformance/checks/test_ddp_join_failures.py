"""A context that holds a model, when something goes wrong in it: errors in hooks, ranks out of step, early ends."""

import contextlib
import itertools
import re
import threading
import time

import torch
import torch.distributed as dist

from conformance.api import oracle
from conformance.api.checking import check
from conformance.api.schedules import linear
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import done, summing
from conformance.fixtures.errors import complains_of_backward
from conformance.fixtures.joinables import adder, recorder, upper_ranks
from conformance.fixtures.observing import assert_told
from conformance.fixtures.training import ddp, gradient, gradients, numbers, scalar_means
from conformance.ranks import Caught, caught

SPILLED = "spilled the tea"


def fail_in_a_hook(ctx, where):
    """Rank 0 runs out first and fails in a hook of a joinable beside a model; the error here, and in a later wait."""
    model, mine = ddp(ctx, models.scalar()), LookupError(SPILLED)

    def fail(*_):
        if ctx.rank == 0:
            raise mine

    beside = recorder(ctx, **{where: fail})

    def train():
        with ctx.subject.Join([model, beside]):
            for iteration in range(1 + 3 * (ctx.rank > 0)):
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                beside.step()

    return caught(train), [entry for entry in beside.log if "post" in entry]


@check("JOIN-039", worlds=(2, 3), deadline_s=10, beyond=False)
def test_a_rank_that_fails_in_a_main_hook_beside_a_model_is_reported_to_its_peers(ranks):
    (failed, _), *peers = ranks(fail_in_a_hook, "main")
    assert failed is not None
    assert failed.is_a(LookupError), failed
    for error, posts in peers:
        assert_told(error, 0)
        assert posts == []


# -- JOIN-023: an error of all ranks, while one of them still waits for what the others have


def all_leave_together(ctx):
    """Every rank raises after its first iteration, whose results come to the last rank later than to the others.

    The error that leaves the context, and the gradient of an iteration behind it.
    """
    model, mine = ddp(ctx, models.scalar()), LookupError(SPILLED)

    def late(state, bucket):
        value, answer = ctx.subject.default_hooks.allreduce_hook(state, bucket).wait(), torch.futures.Future()
        value = value[0] if isinstance(value, list) else value
        if ctx.rank < ctx.world - 1:
            return done(value)
        threading.Timer(0.6, answer.set_result, (value,)).start()  # meanwhile this rank looks out for failed peers
        return answer

    def train():
        with ctx.subject.Join([model]):
            model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
            raise mine

    model.register_comm_hook(None, late)
    error = caught(train)
    model.zero_grad()
    model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    return error, gradient(model.module.weight)


@check("JOIN-023", worlds=(2, 3), deadline_s=10)
def test_where_all_ranks_fail_each_has_its_own_error_however_late_its_results_come(ranks):
    (mean,) = scalar_means((1,) * ranks.world)
    for rank, (error, found) in enumerate(ranks(all_leave_together)):
        assert error is not None, f"rank {rank}: the error of its body did not leave the context"
        assert error.is_a(LookupError), f"rank {rank}: {error}"
        assert found == mean, f"rank {rank}"


def all_leave_behind_a_step(ctx):
    """Every rank raises behind its second step, which the last rank begins later than the others: rank 0, which sends
    it what it owns, waits meanwhile. The error that leaves the context."""
    model = ddp(ctx, models.scalar())
    zero = ctx.subject.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)

    def train():
        with ctx.subject.Join([model, zero]):
            for iteration in range(2):
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                time.sleep(0.6 * iteration * (ctx.rank == ctx.world - 1))
                zero.step()
            raise LookupError(SPILLED)

    error = caught(train)
    ctx.meet("left")
    return error


@check("JOIN-023", worlds=(3,), deadline_s=10)
def test_where_all_ranks_fail_each_has_its_own_error_however_late_a_step_reaches_one(ranks):
    for rank, error in enumerate(ranks(all_leave_behind_a_step)):
        assert error is not None, f"rank {rank}: the error of its body did not leave the context"
        assert error.is_a(LookupError), f"rank {rank}: {error}"


# -- JOIN-024: the next context of a group whose ranks are out of step


def go_on_out_of_step(ctx, failing):
    """Some ranks leave a context when the others have begun an iteration; what the group's next ones give, of which the
    second is entered twice.

    Each attempt gives the gradient or the error, and how many iterations of its block had begun.
    """
    model = ddp(ctx, models.scalar())
    others = [rank for rank in range(ctx.world) if rank not in failing]

    def epoch(context, fails, begun):
        with context:
            for iteration in range(2):
                if fails and iteration == 1 and ctx.rank in failing:
                    ctx.store.wait([f"begun/{rank}" for rank in others])
                    time.sleep(0.2)  # by now they have called the roll, and wait
                    raise KeyError(SPILLED)
                model.zero_grad()
                if fails and iteration == 1:
                    ctx.store.set(f"begun/{ctx.rank}", "1")
                begun.append(iteration)
                model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
        return gradient(model.module.weight)

    def attempt(context, fails=False):
        found, begun = [], []
        error = caught(lambda: found.append(epoch(context, fails, begun)))
        return error if found == [] else found[0], len(begun)

    first, _ = attempt(model.join(), fails=True)
    ctx.meet("failed")
    second = attempt(model.join())
    again = model.join()
    return first, [second, attempt(again), attempt(again)]


@check("JOIN-024", worlds=(3,), deadline_s=15, beyond=False)
def test_where_one_rank_had_left_a_context_the_next_one_is_refused_on_every_rank_or_right(ranks):
    """Refused means: at its entry, with nothing of its block begun, and so again when it is entered again."""
    (mean,) = scalar_means((1,) * ranks.world)
    for failing in ((2,), (1,), (0, 1)):
        told = ranks(go_on_out_of_step, failing)
        for rank, (first, _) in enumerate(told):
            assert isinstance(first, Caught), f"rank {rank}, failing {failing}"
        for later in zip(*[each for _, each in told], strict=True):
            if [found for found, _ in later] != [mean] * ranks.world:
                for rank, (error, begun) in enumerate(later):
                    assert isinstance(error, Caught), f"rank {rank} went on with {later}, failing {failing}"
                    assert error.is_a(RuntimeError), error
                    assert begun == 0, f"rank {rank} had begun {begun} iterations before {error}, failing {failing}"
        for rank, (_, (_, (once, _), (twice, _))) in enumerate(told):
            if isinstance(once, Caught):
                assert isinstance(twice, Caught), f"rank {rank} got {twice} where it was refused before"
                assert twice.text == once.text, f"rank {rank}, failing {failing}"


# -- JOIN-024: what comes behind a context that has failed, but in no context of its own


def go_on_behind_a_failure(ctx, hooked, around):
    """Rank 0 leaves a context in the third iteration, while the others are in its backward; then all go on.

    ``around``: with another model, whose context lies around that one; else without a context. The gradients of what
    follows, and the error that ends it.
    """
    failing, other = ddp(ctx, models.scalar()), ddp(ctx, models.scalar())
    others, found = range(1, ctx.world), []
    for model in (failing, other) if hooked else ():
        model.register_comm_hook(model.process_group, summing)

    def iteration(model, number):
        model.zero_grad()
        loss = model(models.divisible_scalar(ctx.rank, number)).sum()
        if number == 2 and ctx.rank == 0:
            ctx.store.wait([f"in the backward/{rank}" for rank in others])
            time.sleep(0.1)
            raise KeyError(SPILLED)
        if number == 2:
            ctx.store.set(f"in the backward/{ctx.rank}", "")
        loss.backward()
        return gradient(model.module.weight)

    def fail():
        with failing.join():
            for number in range(3):
                iteration(failing, number)

    def go_on():
        with other.join(enable=around):
            assert caught(fail) is not None
            found.extend(iteration(other if around else failing, number) for number in range(3, 6))

    error = caught(go_on)
    return found, error


@check(
    "JOIN-024", worlds=(2, 3), deadline_s=15, beyond=False,
    scenarios={"without a context": (False, False), "with a hook": (True, False), "in another": (False, True)},
)  # fmt: skip
def test_what_comes_behind_a_failed_context_is_refused_on_every_rank_or_right(ranks, scenario):
    expected = [mean * (ranks.world if scenario[0] else 1) for mean in scalar_means((6,) * ranks.world)[3:]]
    told = ranks(go_on_behind_a_failure, *scenario)
    if [found for found, _ in told] != [expected] * ranks.world:
        for rank, (found, error) in enumerate(told):
            assert found == expected[: len(found)], f"rank {rank} went on with {found} for {expected}"
            assert error is not None, f"rank {rank} went on"
            assert error.is_a(RuntimeError), error


# -- JOIN-040: a model on some ranks, another joinable on others


def begin_with_another(ctx):
    """The last rank begins with the user's joinable, which sends as much as the model does; error and gradient."""
    model, beside = ddp(ctx, torch.nn.Linear(3, 1, bias=False)), adder(ctx)
    done = []

    def train():
        with ctx.subject.Join([model, beside]):
            for step in ("beside", "model") if ctx.rank == ctx.world - 1 else ("model", "beside"):
                if step == "model":
                    model(torch.ones(1, 3)).sum().backward()
                else:
                    beside.step(100.0)
                done.append(step)

    return caught(train), done, gradients(model)["weight"]


@check("JOIN-040", worlds=(2, 3), deadline_s=10, beyond=False)
def test_ranks_that_run_a_model_and_another_joinable_in_different_orders_get_no_gradients(ranks):
    for rank, (error, steps, held) in enumerate(ranks(begin_with_another)):
        assert error is not None, "gradients of a model have been added to what another joinable sends"
        assert error.is_a(RuntimeError), error
        assert held in (None, [1.0] * 3), f"rank {rank} was given gradients {held}, having done {steps}"


def wait_before_it_sends(ctx):
    """The last rank begins with the user's joinable, and would send behind the wait for its handle."""
    model, beside, sent = ddp(ctx, models.scalar()), recorder(ctx), []

    def train():
        with ctx.subject.Join([beside, model]):
            if ctx.rank == ctx.world - 1:
                beside.notify().wait()
                sent.append("a sum")
            model(models.divisible_scalar(ctx.rank, 0)).sum().backward()

    return caught(train), sent


@check("JOIN-040", worlds=(2, 3), deadline_s=10, beyond=False)
def test_who_waits_for_a_handle_learns_there_that_the_others_are_elsewhere(ranks):
    assert ranks.subject.PeerFailed
    for rank, (error, sent) in enumerate(ranks(wait_before_it_sends)):
        assert error is not None, f"rank {rank}"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert sent == [], f"rank {rank} was let past its handle"


# -- JOIN-051: the forward of a model does not wait


def run_ahead(ctx, notifies):
    """In its first and fourth iteration the last rank begins its forward only when the others have ended theirs.

    Where another joinable ``notifies`` before each forward, they have waited for its handle as well.
    """
    model, beside, last = ddp(ctx, models.scalar()), recorder(ctx), ctx.world - 1
    seen = []
    with ctx.subject.Join([beside, model] if notifies else [model]):
        for iteration in range(4):
            model.zero_grad()
            handle = beside.step()
            if iteration in (0, 3) and ctx.rank == last:
                ctx.store.wait([f"out/{notifies}/{iteration}/{rank}" for rank in range(last)])
            output = model(models.divisible_scalar(ctx.rank, iteration))
            if notifies:
                handle.wait()
            if iteration in (0, 3) and ctx.rank != last:
                ctx.store.set(f"out/{notifies}/{iteration}/{ctx.rank}", "1")
            output.sum().backward()
            seen.append(gradient(model.module.weight))
    return seen


@check("JOIN-051", worlds=(2, 3), deadline_s=8, beyond=False)
def test_a_models_forward_returns_before_the_other_ranks_begin_theirs(ranks):
    for notifies, told in ranks.each(run_ahead, (False, True)):
        assert told == [scalar_means((4,) * ranks.world)] * ranks.world, f"{notifies=}"


# -- JOIN-017, JOIN-041, JOIN-042, JOIN-046: throwing early


def throw_in_a_subgroup(ctx, schedule):
    """All ranks but 0 share a model; the error on this rank and how many iterations it has completed."""
    members = upper_ranks(ctx.world)
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    model, done = ddp(ctx, models.scalar(), process_group=group), []

    def train():
        with ctx.subject.Join([model], throw_on_early_termination=True):
            for iteration in range(schedule[ctx.rank - 1]):
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                done.append(iteration)

    return caught(train), len(done)


@check("JOIN-017", "JOIN-041", "JOIN-042", "JOIN-046", worlds=(3, 4), deadline_s=10, beyond=False)
def test_under_a_model_the_rank_that_runs_out_names_itself_and_the_others_do_not(ranks):
    up = linear(ranks.world - 1, 1)
    for schedule in (up, up[::-1], (0, *up[1:])):
        for rank, (error, begun) in enumerate(ranks(throw_in_a_subgroup, schedule)[1:]):
            assert error is not None
            assert error.is_a(RuntimeError)
            assert begun == min(schedule), f"rank {rank} of {schedule}"
            blames_itself = re.search(rf"(?<!global )\brank {rank}\b[^.]*\bexhausted\b", error.text, re.IGNORECASE)
            assert bool(blames_itself) == (schedule[rank] == min(schedule)), f"rank {rank} of {schedule}: {error}"
            assert "exhausted" in error.text.lower()


def average(_ctx):
    return summing


def compress(ctx):
    """By PowerSGD, on a group of its own, so that the others wait there."""
    library = ctx.subject.powerSGD_hook
    start = {"start_powerSGD_iter": 0, "use_error_feedback": False, "warm_start": False, "min_compression_rate": 0}
    state = library.PowerSGDState(dist.new_group(), **start)
    return lambda _group, bucket: library.powerSGD_hook(state, bucket)


def fail_in_a_communication_hook(ctx, hook_of):
    """Rank 0 runs out first, and its communication hook fails on the zeros that it shadows with."""
    model, calls, passed_on = ddp(ctx, models.scalar()), [], hook_of(ctx)

    def hook(group, bucket):
        calls.append(bucket.index())
        if ctx.rank == 0 and len(calls) > 1:
            raise LookupError(SPILLED)
        return passed_on(group, bucket)

    model.register_comm_hook(ctx.group, hook)

    def train():
        with model.join():
            for iteration in range(1 + 3 * (ctx.rank > 0)):
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()

    error = caught(train)
    ctx.meet("all are told")
    return error


@check("JOIN-039", worlds=(2, 3), deadline_s=10, beyond=False, scenarios={"average": average, "PowerSGD": compress})
def test_a_rank_that_fails_in_a_main_hook_of_its_model_is_reported_to_its_peers(ranks, scenario):
    failed, *peers = ranks(fail_in_a_communication_hook, scenario)
    assert failed is not None, "the error of its hook did not leave the context"
    assert SPILLED in failed.text, failed
    for error in peers:
        assert_told(error, 0)


# -- JOIN-038, DDPJ-034: a block at once after one that an error of the model's own has ended on all ranks


def fail_everywhere_and_begin_anew(ctx, schedule):
    """By place of the error, inside a block and outside of any: what a block at once after it gives."""
    told = {}
    for where, inside in itertools.product(("forward", "backward", "between"), (True, False)):
        model, seen = ddp(ctx, models.Sum(2)), []

        def fail(*_):
            raise KeyError(SPILLED)

        def go_wrong(model=model, where=where, inside=inside):
            first, last = model.module.layers
            with model.join() if inside else contextlib.nullcontext():
                for iteration in range(2):
                    model(models.divisible(ctx.rank, iteration)).sum().backward()
                with contextlib.ExitStack() as wrong:
                    if where == "forward":
                        wrong.enter_context(last.register_forward_pre_hook(fail))
                    loss = model(models.divisible(ctx.rank, 2)).sum()
                    if where == "between":
                        fail()
                    wrong.enter_context(first.weight.register_hook(fail))
                    loss.backward()

        def begin_anew(model=model, seen=seen):
            with model.join():
                for iteration in range(schedule[ctx.rank]):
                    model.zero_grad()
                    model(models.divisible(ctx.rank, iteration)).sum().backward()
                    seen.append(gradients(model))

        assert caught(go_wrong).is_a(KeyError)
        ctx.meet(f"failed in {where}, {inside}")
        error = caught(begin_anew)
        ctx.meet(f"begun anew after {where}, {inside}")
        told[where, inside] = error, seen
        if error is not None:
            break
    return told


@check("DDPJ-034", "JOIN-038", worlds=(2, 3), beyond=False, deadline_s=15)
def test_a_block_right_after_an_error_that_all_ranks_have_raised_is_like_the_first(ranks):
    schedule = (0, *[3] * (ranks.world - 1))
    alone = models.Sum(2)
    batches = [[models.divisible(rank, iteration) for rank in range(1, ranks.world)] for iteration in range(3)]
    right = [numbers(oracle.averaged_gradients(alone, each, ranks.world).items()) for each in batches]
    for rank, told in enumerate(ranks(fail_everywhere_and_begin_anew, schedule)):
        for where, (error, seen) in told.items():
            if error is not None and error.is_a(RuntimeError) and complains_of_backward(error.text):
                ranks.at_limit("after a backward that failed, the next forward is refused")
                return
            assert error is None, f"rank {rank}, after {where}: {error}"
            assert seen == right[: schedule[rank]], f"rank {rank}, after {where}"


# -- DDPJ-028: what fails under no_sync is nobody else's concern


def fail_while_accumulating(ctx, schedule):
    """In an iteration under no_sync the last rank's forward fails, which the loop catches; weights' gradients."""
    model, seen = ddp(ctx, torch.nn.Sequential(models.scalar())), []

    def fail(*_):
        raise KeyError(SPILLED)

    with model.join():
        for iteration in range(schedule[ctx.rank]):
            model.zero_grad()
            bad = ctx.rank == ctx.world - 1 and iteration == 1
            with model.no_sync(), contextlib.suppress(KeyError), contextlib.ExitStack() as wrong:
                if bad:
                    wrong.enter_context(model.module.register_forward_pre_hook(fail))
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradient(model.module[0].weight))
    return seen


@check("DDPJ-028", worlds=(2, 3), beyond=False)
def test_a_batch_that_fails_under_no_sync_and_is_caught_is_left_out_and_training_goes_on(ranks):
    last = ranks.world - 1
    for schedule, told in ranks.each(fail_while_accumulating, ((2, *[4] * last), (*[4] * last, 3))):
        right = []
        for iteration in range(max(schedule)):
            found = [
                models.divisible_scalar(rank, iteration).item() * (1 if (rank, iteration) == (last, 1) else 2)
                for rank in oracle.active_ranks(schedule, iteration)
            ]
            right.append(sum(found) / ranks.world)
        assert told == [right[:count] for count in schedule], f"schedule {schedule}"
