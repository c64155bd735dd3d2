"""Entering, a disabled context, and a body or a hook that fails."""

import torch.distributed as dist

from conformance.api.checking import MANY, check
from conformance.api.schedules import linear, shapes
from conformance.fixtures import models
from conformance.fixtures.errors import fail
from conformance.fixtures.joinables import recorder, upper_ranks
from conformance.fixtures.observing import assert_told
from conformance.fixtures.training import ddp
from conformance.ranks import Caught, Finished, caught
from conformance.subjects import DETECTION, Unsupported

BEFORE = ("nothing", "an error", "a throw")


def enter_one_after_another(ctx):
    """The ranks enter in turn, each only after the one before has got in; no rank could wait for a later one.

    Once with nothing before, once after a context that an error has ended on all ranks and one that went well, and
    once after a context that threw.
    """
    told = []
    for before in BEFORE:
        if before == "an error":
            failed = caught(step_in_a_context, ctx, 1, "spilled the tea")
            assert failed is not None, "the error of its body did not leave the context before this one"
            step_in_a_context(ctx, 1)
        if before == "a throw":
            caught(step_in_a_context, ctx, 1 + ctx.rank, throw_on_early_termination=True)
        a = recorder(ctx)
        join, started = ctx.subject.Join([a]), len(ctx.trace())
        if ctx.rank > 0:
            ctx.store.wait([f"{before}/{ctx.rank - 1}"])
        with join as bound:
            started = len(ctx.trace()) - started
            ctx.store.set(f"{before}/{ctx.rank}", "1")
            a.step()
        told.append((bound is None, started, a.log))
    return told


def step_in_a_context(ctx, times, spilled="", **keywords):
    a = recorder(ctx)
    with ctx.subject.Join([a], **keywords):
        for _ in range(times):
            a.step()
        if spilled:
            raise LookupError(spilled)


@check("JOIN-021", deadline_s=10)
def test_entering_waits_for_nobody_and_binds_nothing(ranks):
    for rank, told in enumerate(ranks(enter_one_after_another, trace=True)):
        for before, (nothing, started, log) in zip(BEFORE, told, strict=True):
            about = f"rank {rank}, after {before}: entering"
            assert nothing, f"{about} bound something to the as target"
            assert started == 0, f"{about} started {started} collectives"
            assert log == ["a step", "a post True"], f"{about} led to {log}"


def train_disabled(ctx, schedule, throw):
    a, b = recorder(ctx), recorder(ctx, "b")
    with ctx.subject.Join([a, b], enable=False, throw_on_early_termination=throw):
        silent = [each.step() is None for _ in range(schedule[ctx.rank]) for each in (a, b)]
    return all(silent), a.log, b.log, len(ctx.trace())


@check("JOIN-022")
def test_a_disabled_context_neither_communicates_nor_runs_hooks(ranks):
    for schedule in (shapes(ranks.world)["even"], linear(ranks.world)):
        for rank, seen in enumerate(ranks(train_disabled, schedule, False, trace=True)):
            count = schedule[rank]
            assert seen == (True, ["a step"] * count, ["b step"] * count, 0)


@check("JOIN-047")
def test_a_disabled_context_throws_nothing_when_asked_to_throw(ranks):
    for schedule in (shapes(ranks.world)["even"], linear(ranks.world)):
        for rank, (silent, log, _, collectives) in enumerate(ranks(train_disabled, schedule, True, trace=True)):
            assert silent, f"rank {rank}: a notification in a disabled context returned something"
            assert log == ["a step"] * schedule[rank]
            assert collectives == 0


class Stop(BaseException):
    """Not an Exception: like KeyboardInterrupt, which must get through as well."""


class Unspeakable(Exception):
    """An error that has no words: whoever asks it for its text gets an error of the user's, too."""

    def __str__(self):
        raise Unspeakable


def raise_in_the_body(ctx, kind):
    a, b, mine, at = recorder(ctx), recorder(ctx, "b"), kind("mine"), -1
    try:
        with ctx.subject.Join([a, b]):
            a.step(), b.step()
            at = len(ctx.trace())
            raise mine
    except Unsupported:
        raise
    except BaseException as error:
        return error is mine, error.__cause__ is None, a.log + b.log, at, len(ctx.trace())
    return "swallowed"


@check("JOIN-023")
def test_what_the_body_raises_comes_out_as_it_is_without_hooks_or_collectives(ranks):
    for kind in (KeyError, StopIteration, Stop, Unspeakable):
        for seen in ranks(raise_in_the_body, kind, trace=True):
            assert seen == (True, True, ["a step", "b step"], 1, 1)


def members_of(world):
    return list(range(world)) if world < 3 else upper_ranks(world)


def one_rank_fails(ctx, throw, where, kind=LookupError):
    """The group's first rank fails in its second iteration (or first shadow); everybody else goes on.

    Whoever waits for it waits long after the run has been called hung: the groups' own timeouts are longer.
    """
    members = members_of(ctx.world)
    group = dist.new_group(members)
    if ctx.rank not in members:
        return None
    fails = ctx.rank == members[0]
    mine, log = kind("spilled the tea"), []

    def fail(_joinable):
        if fails:
            log.append(len(ctx.trace()))
            raise mine

    a = recorder(ctx, group=group, main=fail if where == "main hook" else None)

    def train():
        with ctx.subject.Join([a], throw_on_early_termination=throw):
            for iteration in range(1 if fails and where == "main hook" else 4):
                if iteration == 1 and where == "body":
                    fail(a)
                a.step()

    error = caught_whatever_it_is(train)
    return error, [len(ctx.trace()) - at for at in log], a.log


def caught_whatever_it_is(act):
    try:
        return caught(act)
    except Stop as error:
        return Caught(tuple(kind.__name__ for kind in type(error).__mro__), str(error))


def peers_were_told(ranks, throw, where, kind=LookupError):
    failed, *peers = [each for each in ranks(one_rank_fails, throw, where, kind) if each is not None]
    assert failed[0] is not None
    assert failed[0].is_a(kind)
    for error, _, log in peers:
        assert_told(error, 0)
        if "global rank" in error.text:
            assert f"global rank {members_of(ranks.world)[0]}" in error.text, error
        assert not [entry for entry in log if "post" in entry]


@check("JOIN-023", worlds=(2, 3), deadline_s=10, beyond=False)
def test_a_rank_that_fails_alone_starts_no_collective_whatever_its_peers_do(ranks):
    throw = ranks.world == 3
    run = ranks.run(one_rank_fails, throw, "body", trace=True)
    first = members_of(ranks.world)[0]
    end = run.outcomes[first]
    error, later, log = end.value if isinstance(end, Finished) else run.values()[first]
    assert error is not None, "the error of its body did not leave the context"
    assert error.is_a(LookupError), f"another error than that of its body left the context: {error}"
    assert "spilled the tea" in error.text
    assert later == [0]
    assert log == ["a step"]


@check("JOIN-024", worlds=(2,), deadline_s=10)
def test_a_rank_that_fails_in_the_body_is_reported_to_its_peers_at_once(ranks):
    for kind in (LookupError, Stop):
        peers_were_told(ranks, False, "body", kind)


@check("JOIN-024", worlds=(2,), deadline_s=10)
def test_a_rank_that_fails_in_the_body_at_a_store_of_its_own_is_reported_to_its_peers_too(ranks):
    peers_were_told(ranks, False, "body", dist.DistStoreError)


def fail_beside_an_unlisted_model(ctx):
    """Inside a context that does not list the model that they train, rank 0 fails while its peers reduce."""
    a, model = recorder(ctx), ddp(ctx, models.scalar())

    def train():
        with ctx.subject.Join([a]):
            for iteration in range(3):
                a.step()
                if ctx.rank == 0 and iteration == 1:
                    raise LookupError("spilled the tea")
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()

    return caught(train)


@check("JOIN-024", worlds=(2,), deadline_s=10)
def test_a_rank_that_fails_in_the_body_is_reported_to_peers_in_a_model_that_is_not_listed(ranks):
    failed, *peers = ranks(fail_beside_an_unlisted_model)
    assert failed is not None
    assert failed.is_a(LookupError)
    for error in peers:
        assert_told(error, 0)


def fail_behind_a_peer(ctx):
    """Rank 0 fails between a forward and its backward; then the backward of each other rank fails, which goes on."""
    model = ddp(ctx, models.scalar())

    def train():
        with ctx.subject.Join([model]):
            for iteration in range(3):
                loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
                if iteration == 0:
                    loss.backward()
                elif ctx.rank == 0:
                    raise LookupError("spilled the tea")
                else:
                    ctx.store.wait(["left"])
                    with model.module.weight.register_hook(fail):
                        caught(loss.backward)

    error = caught(train)
    if ctx.rank == 0:
        ctx.store.set("left", "")
    return error


@check("JOIN-024", worlds=(2, 3), deadline_s=10)
def test_a_rank_that_cannot_go_on_behind_a_peer_that_failed_names_that_one(ranks):
    assert ranks.subject.PeerFailed
    failed, *peers = ranks(fail_behind_a_peer)
    assert failed is not None
    assert failed.is_a(LookupError)
    for error in peers:
        assert_told(error, 0)


@check("JOIN-024", worlds=(4,), deadline_s=10)
def test_a_rank_that_fails_in_the_body_is_reported_in_throwing_mode_too(ranks):
    peers_were_told(ranks, True, "body")


def end_in_an_inner_context(ctx, schedule):
    """All ranks but 0 share an inner context, which throws; rank 0 shares only the outer one with them."""
    group = dist.new_group(upper_ranks(ctx.world))
    a, b = recorder(ctx), recorder(ctx, "b", group=group)

    def train():
        with ctx.subject.Join([a]):
            for _ in range(4 if ctx.rank == 0 else 1):
                a.step()
            if ctx.rank > 0:
                with ctx.subject.Join([b], throw_on_early_termination=True):
                    for _ in range(schedule[ctx.rank - 1]):
                        b.step()

    return caught(train), a.log


@check("JOIN-024", worlds=(3,), deadline_s=10, beyond=False)
def test_a_rank_that_fails_in_the_body_by_an_inner_context_is_reported_to_who_is_not_in_there(ranks):
    outside, *inside = ranks(end_in_an_inner_context, linear(ranks.world - 1, 1))
    assert_told(outside[0], *range(1, ranks.world))
    for error, log in (outside, *inside):
        assert error is not None
        assert error.is_a(RuntimeError), error
        assert not [entry for entry in log if "post" in entry]


class Sealed(LookupError):
    """An error that takes no attributes, as a frozen dataclass's."""

    def __setattr__(self, name, value):
        raise AttributeError(f"nobody sets {name}")


def fail_by_sealed_errors(ctx):
    """Rank 0 fails first; the others know of it when they do."""
    a = recorder(ctx)

    def train():
        with ctx.subject.Join([a]):
            if ctx.rank > 0:
                ctx.store.wait(["has left"])
            raise Sealed("spilled the tea")

    error = caught(train)
    ctx.store.set("has left", "")
    return error, a.log


@check("JOIN-023", worlds=(2,))
def test_what_the_body_raises_comes_out_even_if_it_takes_no_notes(ranks):
    for error, log in ranks(fail_by_sealed_errors):
        assert error.is_a(LookupError), error
        assert log == []


def fail_around_an_inner_context(ctx, members):
    """The last rank fails in the outer context, while its peers in the inner one wait for it there."""
    group, failing = ctx.group if len(members) == ctx.world else dist.new_group(members), ctx.world - 1
    a, b = recorder(ctx), recorder(ctx, "b", group=group)

    def train():
        with ctx.subject.Join([a]):
            a.step()
            if ctx.rank == failing:
                raise LookupError("spilled the tea")
            if ctx.rank in members:
                with ctx.subject.Join([b]):
                    b.step()

    error = caught(train)
    ctx.store.set(f"{ctx.rank} is told", "")
    ctx.store.wait([f"{rank} is told" for rank in range(ctx.world)])
    return error, a.log, b.log


@check("JOIN-024", worlds=(2, 3), deadline_s=10, beyond=False)
def test_a_rank_that_fails_in_the_body_is_reported_to_peers_in_an_inner_context(ranks):
    run = ranks.run(fail_around_an_inner_context, [0, ranks.world - 1], env={DETECTION: "1"})
    *peers, failed = run.values()
    assert failed[0].is_a(LookupError), failed
    for rank, (error, *logs) in enumerate(peers):
        assert_told(error, 1, ranks.world - 1)  # in the inner context's group it is rank 1
        assert not [entry for log in logs for entry in log if "post" in entry], f"rank {rank}"


@check("JOIN-039", worlds=(2, 3), deadline_s=10, beyond=False)
def test_a_rank_that_fails_in_a_main_hook_is_reported_to_its_peers_at_once(ranks):
    for kind in (LookupError, Stop):
        peers_were_told(ranks, False, "main hook", kind)


def fail_in_a_post_hook(ctx):
    mine = LookupError("spilled the tea")

    def fail(_joinable, _last):
        if ctx.rank == 0:
            raise mine

    a = recorder(ctx, post=fail)

    def train():
        with ctx.subject.Join([a]):
            for _ in range(1 + ctx.rank):
                a.step()

    error = caught(train)
    return error, caught(train_after, ctx)


def train_after(ctx):
    a = recorder(ctx, "again")
    with ctx.subject.Join([a]):
        a.step()


@check("JOIN-039", worlds=MANY, deadline_s=10)
def test_a_failing_post_hook_raises_on_its_rank_and_hangs_nobody(ranks):
    for rank, (error, after) in enumerate(ranks(fail_in_a_post_hook)):
        if rank == 0:
            assert error is not None
            assert error.is_a(LookupError)
        else:
            assert error is None or error.is_a(RuntimeError), error
        assert after is None
