"""Failures where the guard has little to go on: no store, no guard, and collectives that a backend does not finish."""

import contextlib
import os
import re
import signal
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import check
from conformance.faults.injecting import read
from conformance.faults.training import fork_store
from conformance.fixtures import models
from conformance.fixtures.endings import killed
from conformance.fixtures.machines import ensure_one_machine
from conformance.fixtures.training import ddp, gradient, scalar_means
from conformance.ranks import Caught, Finished, caught
from conformance.ranks.recording import METHODS, RecordingGroup, recorded
from conformance.subjects import DETECTION

SOON = {DETECTION: "1"}  # seconds of silence
LATE_S = 0.2
DEADLINE_S = 15.0


def with_notes(act, *args):
    """As ``caught``, with the notes of the error in its text."""
    notes = []

    def keep_notes():
        try:
            act(*args)
        except Exception as error:
            notes.extend(getattr(error, "__notes__", ()))
            raise

    error = caught(keep_notes)
    return error and Caught(error.kinds, "\n".join([error.text, *notes]))


def train_once(ctx, model, iteration):
    model.zero_grad()
    model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
    return gradient(model.module.weight)


def all_but_one(run):
    """What the ranks have brought home, by rank, but for the last one, which is lost."""
    found = {}
    for rank, end in enumerate(run.outcomes[:-1]):
        assert isinstance(end, Finished), run.summary()
        found[rank] = end.value
    return found


# -- JOIN-057: without the store


@contextlib.contextmanager
def a_store_that_ends(ctx):
    """A group that was set up by a store in a process of its own; what ends that process, or stops it, to be called by
    rank 0."""
    ensure_one_machine(ctx, "the store is met by the loopback")
    process = 0
    if ctx.rank == 0:
        with tempfile.TemporaryDirectory() as folder:
            fork_store(path := Path(folder, "store"))
            while (found := read(path)) is None:
                time.sleep(0.005)
        process = found["pid"]
        ctx.store.set("port", str(found["port"]))
    store = dist.TCPStore("127.0.0.1", int(ctx.store.get("port")))
    dist.init_process_group("gloo", store=store, rank=ctx.rank, world_size=ctx.world)
    ctx.meet("all are connected")
    yield lambda how=signal.SIGKILL: os.kill(process, how)
    if process:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def lose_the_store_and_then_a_rank(ctx):
    """No rank finds the others by the store, which ends before any model is built; the last one is killed later."""
    with a_store_that_ends(ctx) as end_it:
        if ctx.rank == 0:
            end_it()
        ctx.meet("the store is gone")
        model, seen = ddp(ctx, models.scalar()), []
        with model.join():
            seen += [train_once(ctx, model, iteration) for iteration in range(1 + ctx.rank)]

        def train_on():
            with model.join():
                loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
                if ctx.rank == ctx.world - 1:
                    killed()
                loss.backward()

        return seen, with_notes(train_on)


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_have_lost_the_store_train_on_and_learn_whom_they_have_never_met(ranks):
    assert ranks.subject.PeerFailed
    schedule = tuple(range(1, ranks.world + 1))
    run = ranks.run(lose_the_store_and_then_a_rank, init=False, stall_s=DEADLINE_S)
    for rank, (seen, error) in all_but_one(run).items():
        assert seen == scalar_means(schedule)[: schedule[rank]], f"rank {rank}"
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert f"rank {ranks.world - 1}" in error.text, f"rank {rank}: {error}"


def lose_the_store_while_one_is_late(ctx, how, late_s):
    """All build their models but the last rank, of which there is nothing to be learned without the store."""
    with a_store_that_ends(ctx) as end_it:
        if ctx.rank == 0 and not late_s:
            end_it(how)
        ctx.meet("all may begin")
        if ctx.rank == ctx.world - 1:
            return ctx.store.wait([f"{rank} is told" for rank in range(ctx.world - 1)])
        if ctx.rank == 0 and late_s:
            threading.Timer(late_s, end_it, (how,)).start()
        error = caught(ddp, ctx, models.scalar())
        ctx.store.set(f"{ctx.rank} is told", "")
        if ctx.rank == 0:
            ctx.store.wait([f"{rank} is told" for rank in range(ctx.world - 1)])
            end_it()
        return error


@check(
    "JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={
        "killed": (signal.SIGKILL, LATE_S), "frozen": (signal.SIGSTOP, LATE_S), "frozen before": (signal.SIGSTOP, 0.0),
    },
)  # fmt: skip
def test_a_rank_that_was_never_met_is_not_waited_for_once_the_store_is_gone(ranks, scenario):
    lost = ranks.subject.PeerFailed
    run = ranks.run(lose_the_store_while_one_is_late, *scenario, init=False, env=SOON, stall_s=DEADLINE_S)
    for rank, error in all_but_one(run).items():
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(lost), f"rank {rank}: {error}"
        assert f"rank {ranks.world - 1}" in error.text, f"rank {rank}: {error}"


# -- JOIN-057: without a guard


class OwnStore(dist.Store):
    """A store of the program's own, which keeps everything in another one."""

    def __init__(self, kept):
        super().__init__()
        self._kept = kept


for _name in ("set", "get", "add", "check", "compare_set", "delete_key", "wait", "num_keys"):
    setattr(OwnStore, _name, lambda self, *args, _name=_name: getattr(self._kept, _name)(*args))


def lose_one_that_nobody_watches(ctx, own_store, joined):
    """One rank is late in the first iteration, and the last is killed in the second."""
    store = dist.PrefixStore("group", ctx.store)
    store = OwnStore(store) if own_store else store
    dist.init_process_group("gloo", store=store, rank=ctx.rank, world_size=ctx.world)
    model, seen = ddp(ctx, models.scalar()), []

    def train():
        with model.join(enable=joined):
            for iteration in range(2):
                if iteration == 0 == ctx.rank:
                    time.sleep(LATE_S)
                if iteration == 1 and ctx.rank == ctx.world - 1:
                    killed()
                seen.append(train_once(ctx, model, iteration))

    return with_notes(train), seen


#: by name: what makes it so, whether it is a store, and whether ranks are in a context
UNGUARDED = {
    "switched off": ({DETECTION: "0"}, False, True),
    "switched off, without a context": ({DETECTION: "0"}, False, False),
    "a store of the program's own": ({}, True, True),
}


@check("JOIN-057", worlds=(2,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S, scenarios=UNGUARDED)
def test_without_a_guard_the_error_of_a_collective_blames_nobody(ranks, scenario):
    env, own_store, joined = scenario
    lost = ranks.subject.PeerFailed
    run = ranks.run(lose_one_that_nobody_watches, own_store, joined, init=False, env=env, stall_s=DEADLINE_S)
    for rank, (error, seen) in all_but_one(run).items():
        assert seen == scalar_means((1,) * ranks.world), f"rank {rank}"
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert not error.is_a(lost), f"rank {rank}: {error}"
        assert (DETECTION in error.text) == joined, f"rank {rank}: {error}"


def choose_no_time(ctx):
    return caught(ddp, ctx, models.scalar())


@check("JOIN-057", worlds=(2,), beyond=False)
def test_what_is_no_detection_time_is_refused(ranks):
    assert ranks.subject.PeerFailed
    for said in ("soon", "-1"):
        for rank, error in enumerate(ranks(choose_no_time, env={DETECTION: said})):
            assert error is not None, f"rank {rank} takes {said!r}"
            assert error.is_a(ValueError), f"rank {rank}: {error}"
            assert DETECTION in error.text, f"rank {rank}: {error}"


# -- JOIN-057: what a backend refuses


class Troubled(RecordingGroup):
    """A group that starts something else in place of a collective once there is trouble."""

    trouble = None


def troubled(method):
    right = getattr(RecordingGroup, method)

    def call(self, *args, **named):
        return right(self, *args, **named) if Troubled.trouble is None else Troubled.trouble()

    return call


for _name in METHODS:
    if hasattr(dist.ProcessGroup, _name):
        setattr(Troubled, _name, troubled(_name))


@contextlib.contextmanager
def troubled_group(ctx):
    """The default group, which may come into trouble; what brings it there."""

    def bring(trouble):
        Troubled.trouble = staticmethod(trouble)

    with recorded("gloo", Troubled):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", ctx.store), rank=ctx.rank, world_size=ctx.world
        )
        try:
            yield bring
        finally:
            Troubled.trouble = None


def refuse():
    raise dist.DistBackendError("the connection is gone")


def acts(ctx):
    """The models, and by what they start first: a forward or a backward of each kind, after others before it."""
    sums, counts = ddp(ctx, models.scalar()), ddp(ctx, nn.BatchNorm1d(1))
    table, sharded = ddp(ctx, nn.Embedding(4, 1, sparse=True)), ddp(ctx, models.scalar())
    optimizer = ctx.subject.ZeroRedundancyOptimizer(
        sharded.parameters(), torch.optim.SGD, lr=0.5, overlap_with_ddp=True
    )
    reduce = ctx.subject.default_hooks.allreduce_hook
    sharded.register_comm_hook(None, ctx.subject.hook_with_zero_step(reduce, sharded, optimizer, reduce_scatter=True))
    x = models.divisible_scalar(ctx.rank, 0)
    for _ in range(3):
        for model in (sums, table, sharded):
            model(torch.tensor([1]) if model is table else x).sum().backward()
    losses = {
        "a sum": sums(x).sum(), "rows of a table": table(torch.tensor([1])).sum(), "a sum for one": sharded(x).sum(),
    }  # fmt: skip
    return (sums, counts, table, sharded), {
        **{name: loss.backward for name, loss in losses.items()},
        "buffers": lambda: counts(torch.ones(2, 1)),
        "whole shards": lambda: ctx.subject.ZeroRedundancyOptimizer(
            sums.parameters(), torch.optim.SGD, lr=0.5
        ).consolidate_state_dict(),
    }


def refuse_once_one_is_lost(ctx):
    """The last rank is killed, and the group starts nothing more on the others, as that of NCCL does."""
    with troubled_group(ctx) as bring:
        _models, each = acts(ctx)
        ctx.meet("all are trained")
        if ctx.rank == ctx.world - 1:
            killed()
        bring(refuse)
        return {name: caught(act) for name, act in each.items()}


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_lost_rank_is_named_where_a_backend_starts_no_collective_any_more(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(refuse_once_one_is_lost, init=False, stall_s=DEADLINE_S)
    for rank, errors in all_but_one(run).items():
        for name, error in errors.items():
            assert error is not None, f"rank {rank}, {name}: noticed nothing"
            assert error.is_a(lost), f"rank {rank}, {name}: {error}"
            assert f"rank {ranks.world - 1}" in error.text, f"rank {rank}, {name}: {error}"


class Failed(dist.Work):
    """A collective that has failed."""

    kind, text = RuntimeError, "[gloo/transport] the network was away for a moment"

    def wait(self, timeout=None):
        raise self.kind(self.text)

    def is_completed(self):
        return True


class Misused(Failed):
    kind, text = ValueError, "a mistake in a call"


def fail_on_all(ctx):
    """A collective fails on all ranks, of which none is lost: in a context, outside of one, and by a mistake."""
    errors = []
    with troubled_group(ctx) as bring:
        for joined, trouble in ((True, Failed), (False, Failed), (False, Misused)):
            Troubled.trouble = None
            model = ddp(ctx, models.scalar())

            def train(model=model, joined=joined, trouble=trouble):
                with model.join(enable=joined):
                    loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
                    bring(trouble)
                    loss.backward()

            errors.append(with_notes(train))
    return errors


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_where_a_collective_fails_and_no_rank_is_lost_none_is_named(ranks):
    lost = ranks.subject.PeerFailed
    for rank, (*failed, misused) in enumerate(ranks(fail_on_all, init=False, stall_s=DEADLINE_S)):
        for error in failed:
            assert error is None or "Every rank of this group still answers" in error.text, f"rank {rank}: {error}"
        for error, kind in (*((each, RuntimeError) for each in failed), (misused, ValueError)):
            assert error is not None, f"rank {rank} noticed nothing"
            assert error.is_a(kind), f"rank {rank}: {error}"
            assert not error.is_a(lost), f"rank {rank}: {error}"
            assert not re.search(r"\brank \d", error.text), f"rank {rank}: {error}"
            assert "The collective that failed: bucket 0 in iteration 1" in error.text, f"rank {rank}: {error}"


def lose_one_beside_a_collective_of_the_program(ctx, contexts=1):
    """The last rank is killed inside so many contexts, in which the others add up numbers of their own."""
    wrapped = [ddp(ctx, models.scalar()) for _ in range(contexts)]

    def train():
        with contextlib.ExitStack() as inside:
            for model in wrapped:
                inside.enter_context(model.join())
            train_once(ctx, wrapped[-1], 0)
            if ctx.rank == ctx.world - 1:
                killed()
            dist.all_reduce(torch.ones(1))

    return with_notes(train)


@check("JOIN-057", worlds=(2,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_lost_rank_is_named_where_a_collective_of_the_program_fails_in_a_context(ranks):
    assert ranks.subject.PeerFailed
    run = ranks.run(lose_one_beside_a_collective_of_the_program, stall_s=DEADLINE_S)
    for rank, error in all_but_one(run).items():
        assert error is not None, f"rank {rank} noticed nothing"
        assert f"rank {ranks.world - 1}" in error.text, f"rank {rank}: {error}"


@check("JOIN-057", worlds=(2,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_lost_rank_is_named_once_where_an_error_leaves_two_contexts(ranks):
    assert ranks.subject.PeerFailed
    run = ranks.run(lose_one_beside_a_collective_of_the_program, 2, stall_s=DEADLINE_S)
    for rank, error in all_but_one(run).items():
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.text.count("rank 1") == 1, f"rank {rank}: {error}"
