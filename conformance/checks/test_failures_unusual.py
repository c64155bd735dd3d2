"""Failures that few programs meet: without a guard, with a store that ends or is asked for a short time, in collectives
of the program's own, and by errors of an unusual kind."""

import contextlib
import datetime
import os
import re
import signal
import socket
import threading
import time

import torch
import torch.distributed as dist

from conformance.api.checking import NotRun, check
from conformance.checks.test_failures_unguarded import a_store_that_ends, train_once, with_notes
from conformance.fixtures import models
from conformance.fixtures.endings import end_by, killed
from conformance.fixtures.errors import BadBatch
from conformance.fixtures.machines import ensure_one_machine
from conformance.fixtures.training import ddp, gradient, scalar_means
from conformance.ranks import Finished, caught
from conformance.ranks.recording import RecordingGroup, recorded
from conformance.subjects import DETECTION

UNGUARDED = {DETECTION: "0"}
SOON = {DETECTION: "1"}  # seconds of silence
LATE_S = 0.2
SHORT_S = 0.4
DEADLINE_S = 15.0


def names_rank(error, number):
    return error is not None and f"rank {number}" in error.text


# -- JOIN-024: in contexts inside each other, without a guard


def leave_two_contexts(ctx):
    """Rank 0 leaves one context by an error, while the others wait in two inside it, and then two; then all leave two
    by an error, the last rank late, and go on in two more. The errors of these, and the gradients of the last."""
    told, seen = [], []
    for turn in ("rank 0 fails outside", "rank 0 fails", "all fail", "none fails"):
        if turn != "none fails":
            outer, inner = (ddp(ctx, models.scalar(), process_group=group) for group in [dist.new_group()] * 2)
        last, seen = ctx.rank == ctx.world - 1, []

        def train(turn=turn, outer=outer, inner=inner, late=LATE_S if last else 0.0, seen=seen):
            with contextlib.ExitStack() as contexts:
                contexts.enter_context(outer.join())
                if turn == "rank 0 fails outside":
                    if ctx.rank == 0:
                        raise BadBatch("spilled the tea")
                    contexts.enter_context(inner.join())
                    contexts.enter_context(inner.join())
                    train_once(ctx, inner, 0)
                contexts.enter_context(inner.join())
                seen += [train_once(ctx, model, 0) for model in (outer, inner)]
                if turn == "all fail":
                    time.sleep(late)
                if turn == "all fail" or (turn, ctx.rank) == ("rank 0 fails", 0):
                    raise BadBatch("spilled the tea")
                if turn == "rank 0 fails":
                    train_once(ctx, inner, 1)

        told.append(caught(train))
    return told, seen


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_without_a_guard_peers_are_told_of_errors_and_a_late_one_is_waited_for(ranks):
    assert ranks.subject.PeerFailed
    run = ranks.run(leave_two_contexts, env=UNGUARDED, stall_s=DEADLINE_S)
    for rank, (told, seen) in enumerate(run.values()):
        *first, second, third = told
        for error in first:
            assert error is not None, f"rank {rank} noticed nothing"
            assert rank == 0 or names_rank(error, 0), f"rank {rank}: {error}"
        assert second is not None, f"rank {rank}"
        assert second.is_a(BadBatch), f"rank {rank}: {second}"
        assert third is None, f"rank {rank}: {third}"
        assert seen == scalar_means((1,) * ranks.world) * 2, f"rank {rank}"


# -- JOIN-024 and JOIN-054: a store that is asked for a short time


@contextlib.contextmanager
def a_store_asked_for_short_times(ctx):
    """The default group, set up by a store that is asked for a key for so long and no longer."""
    store = ctx.store.clone()
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=ctx.rank, world_size=ctx.world)
    store.set_timeout(datetime.timedelta(seconds=SHORT_S))
    yield


def enter_before_the_others_have_left(ctx):
    """All leave a context by an error, rank 1 when rank 0 has been told that it cannot enter the next one; the errors
    of both."""
    with a_store_asked_for_short_times(ctx):
        model = ddp(ctx, models.scalar())

        def train():
            with model.join():
                train_once(ctx, model, 0)
                if ctx.rank == 1:
                    ctx.store.wait(["rank 0 is told"])
                raise BadBatch("spilled the tea")

        first, told = caught(train), caught(train)
        if ctx.rank == 0:
            ctx.store.set("rank 0 is told", "")
        ctx.meet("all are told")
        return first, told


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_enters_long_before_another_has_left_a_failed_context_is_told_which_one(ranks):
    assert ranks.subject.PeerFailed
    run = ranks.run(enter_before_the_others_have_left, init=False, stall_s=DEADLINE_S)
    for rank, (first, told) in enumerate(run.values()):
        assert first is not None, f"rank {rank}"
        assert first.is_a(BadBatch), f"rank {rank}: {first}"
        assert told is not None, f"rank {rank} has gone on"
        assert told.is_a(RuntimeError), f"rank {rank}: {told}"
        assert rank != 1 or names_rank(told, 0) or names_rank(told, 2), f"rank 1, which enters it at last: {told}"
        if rank == 0:
            assert "1" in told.text, told
            assert "is gone" not in told.text, told


def leave_a_backward_out_for_long(ctx):
    """Rank 0 leaves out a backward; the others come to theirs when it has waited for them for too long."""
    with a_store_asked_for_short_times(ctx):
        model = ddp(ctx, models.scalar())

        def train():
            with model.join():
                for iteration in range(3):
                    loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
                    if iteration == 1 and ctx.rank == 0:
                        continue
                    if iteration == 1:
                        ctx.store.wait(["rank 0 is told"])
                    loss.backward()

        error = caught(train)
        ctx.store.set("rank 0 is told", "")
        ctx.meet("all are told")
        return error


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_leaves_a_backward_out_waits_for_the_others_as_long_as_a_store_may_be_asked(ranks):
    assert ranks.subject.PeerFailed
    run = ranks.run(leave_a_backward_out_for_long, init=False, stall_s=DEADLINE_S)
    for rank, error in enumerate(run.values()):
        assert error is not None, f"rank {rank} went on"
        assert error.is_a(RuntimeError), f"rank {rank}: {error}"
        assert names_rank(error, 0), f"rank {rank}: {error}"


# -- JOIN-057: the context behind one in which a rank was lost


def lose_one_inside_a_context(ctx):
    """Rank 1 is killed inside a context; what the others are told there, and in the next one, to which one is late."""
    model = ddp(ctx, models.scalar())

    def train():
        with model.join():
            loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
            if ctx.rank == 1:
                killed()
            loss.backward()

    first = caught(train)
    time.sleep(2 * LATE_S if ctx.rank == 2 else 0.0)
    return first, caught(train)


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_peers_of_a_rank_that_was_lost_in_a_context_are_told_so_in_the_next_one_too(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(lose_one_inside_a_context, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes):
        if rank != 1:
            assert isinstance(end, Finished), run.summary()
            for error in end.value:
                assert error is not None, f"rank {rank} noticed nothing"
                assert error.is_a(lost), f"rank {rank}: {error}"
                named = re.findall(r"rank (\d+)(?! noticed)", error.text)  # who noticed may be said, too
                assert "1" in named, f"rank {rank}: {error}"
                assert "0" not in named, f"rank {rank}: {error}"


# -- JOIN-057: collectives of the program's own


def fail_in_a_collective_of_the_programs(ctx):
    """In two contexts rank 0 meets nobody on a group of the program's own, of which nobody is lost; the others go on in
    the outer one. The error of rank 0, and those of the others in either."""
    own = dist.new_group(timeout=datetime.timedelta(seconds=SHORT_S))
    outer, inner = (ddp(ctx, models.scalar(), process_group=dist.new_group()) for _ in range(2))
    told = []

    def train_inside():
        with inner.join():
            train_once(ctx, inner, 0)
            if ctx.rank == 0:
                dist.all_reduce(torch.ones(1), group=own)
            train_once(ctx, inner, 1)

    def train():
        with outer.join():
            train_once(ctx, outer, 0)
            if ctx.rank == 0:
                train_inside()
            told.append(caught(train_inside))
            train_once(ctx, outer, 1)

    told.append(with_notes(train))
    ctx.meet("all are told")
    return told


WATCHED_OR_NOT = {"watched": {}, "without a guard": UNGUARDED}


@check(
    "JOIN-024", scenarios=WATCHED_OR_NOT, worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
)  # fmt: skip
def test_a_collective_of_the_programs_that_fails_on_one_rank_is_told_to_the_others(ranks, scenario):
    lost = ranks.subject.PeerFailed
    (mine,), *others = ranks(fail_in_a_collective_of_the_programs, env=scenario, stall_s=DEADLINE_S)
    assert mine is not None, "rank 0 noticed nothing"
    assert not mine.is_a(lost), mine
    assert not any(names_rank(mine, other) for other in range(ranks.world)), mine.text  # none of them has failed
    for rank, told in enumerate(others, 1):
        for error in told:
            assert error is not None, f"rank {rank} noticed nothing"
            assert error.is_a(lost), f"rank {rank}: {error}"
            assert names_rank(error, 0), f"rank {rank}: {error}"


# -- JOIN-024: errors of an unusual kind, and a store that has ended


def fail_by_itself(ctx, kind):
    """Rank 0 leaves a context by an error that leads back to itself; the others are in its backward."""
    model = ddp(ctx, models.scalar())

    def train():
        with model.join():
            train_once(ctx, model, 0)
            if ctx.rank == 0:
                error = kind("spilled the tea")
                raise error from error
            train_once(ctx, model, 1)

    return caught(train)


@check("JOIN-023", worlds=(1, 2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_an_error_that_is_its_own_cause_leaves_a_context(ranks):
    run = ranks.run(fail_by_itself, BadBatch, stall_s=DEADLINE_S, group_timeout_s=1.0)
    for rank, error in enumerate(run.values()):
        assert error is not None, f"rank {rank}"
        assert rank > 0 or error.is_a(BadBatch), f"rank {rank}: {error}"


def fail_as_a_backend_does(ctx):
    """The notes of an error like those of collectives that fail, which leaves a context of one rank."""
    alone = [dist.new_group([rank]) for rank in range(ctx.world)][ctx.rank]
    model, error = ddp(ctx, models.scalar(), process_group=alone), dist.DistBackendError("on another group")

    def train():
        with model.join():
            train_once(ctx, model, 0)
            raise error

    return caught(train), getattr(error, "__notes__", [])


@check("JOIN-023", worlds=(1, 2), backends=("gloo",), beyond=False)
def test_nobody_is_looked_for_where_an_error_leaves_a_context_of_one_rank(ranks):
    for rank, (error, notes) in enumerate(ranks(fail_as_a_backend_does)):
        assert error is not None, f"rank {rank}"
        assert error.is_a(dist.DistBackendError), f"rank {rank}: {error}"
        assert not any("rank" in note for note in notes), f"rank {rank}: {notes}"


def fail_without_the_store(ctx, how):
    """The store ends or freezes inside a context, in which the last rank is late twice; then every rank leaves it by an
    error."""
    with a_store_that_ends(ctx) as end_it:
        model, seen = ddp(ctx, models.scalar()), []

        def train():
            with model.join():
                train_once(ctx, model, 0)
                time.sleep(SHORT_S)  # they meet
                ctx.meet("all have begun")
                if ctx.rank == 0:
                    end_it(how)
                ctx.meet("the store is gone")
                for iteration in range(2):
                    time.sleep(LATE_S if ctx.rank == ctx.world - 1 else 0.0)
                    seen.append(train_once(ctx, model, iteration))
                raise BadBatch("spilled the tea")

        error = with_notes(train)
        ctx.meet("all have left")
        return seen, error


@check(
    "JOIN-023", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={"ended": signal.SIGKILL, "frozen": signal.SIGSTOP},
)  # fmt: skip
def test_an_error_leaves_a_context_as_it_is_though_the_store_has_ended(ranks, scenario):
    run = ranks.run(fail_without_the_store, scenario, init=False, env=SOON, stall_s=DEADLINE_S)
    for rank, (seen, error) in enumerate(run.values()):
        assert seen == scalar_means((2,) * ranks.world), f"rank {rank}"
        assert error is not None, f"rank {rank}"
        assert error.is_a(BadBatch), f"rank {rank}: {error}"


# -- JOIN-057: how ranks find each other


def train_by_ipv6(ctx):
    """The last rank is killed in the second iteration of ranks that have set up their group by IPv6."""
    ensure_one_machine(ctx, "the store is met by the loopback")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        raise NotRun("this machine has no IPv6") from None
    if ctx.rank == 0:
        store = dist.TCPStore("::1", 0, is_master=True, wait_for_workers=False)
        ctx.store.set("port", str(store.port))
    else:
        store = dist.TCPStore("::1", int(ctx.store.get("port")))
    dist.init_process_group("gloo", store=store, rank=ctx.rank, world_size=ctx.world)
    model = ddp(ctx, models.scalar())
    seen = [train_once(ctx, model, 0)]
    if ctx.rank == ctx.world - 1:
        killed()
    return seen, caught(train_once, ctx, model, 1)


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_find_each_other_by_ipv6(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(train_by_ipv6, init=False, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes[:-1]):
        assert isinstance(end, Finished), run.summary()
        seen, error = end.value
        assert seen == scalar_means((1,) * ranks.world), f"rank {rank}"
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(lost), f"rank {rank}: {error}"
        assert names_rank(error, ranks.world - 1), f"rank {rank}: {error}"


# -- JOIN-057: who ends by an error of its own behind another's


def end_by_another_error(ctx):
    """Rank 2 is killed, which rank 1 learns on a group with it; then that one's program ends by an error of its own,
    which the loss has nothing to do with, while rank 0 waits for it."""
    groups = [dist.new_group([first, first + 1]) for first in range(2)]
    mine = [ddp(ctx, models.scalar(), process_group=groups[place]) for place in range(2) if 0 <= ctx.rank - place < 2]
    for model in mine:
        train_once(ctx, model, 0)
    ctx.meet("all are trained")
    if ctx.rank == 2:
        killed()
    if ctx.rank == 1:
        assert caught(train_once, ctx, mine[-1], 1) is not None
        end_by(BadBatch("spilled the tea"))
    return caught(train_once, ctx, mine[0], 1)


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_ends_by_an_error_of_its_own_behind_a_loss_is_told_with_that_error(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(end_by_another_error, stall_s=DEADLINE_S)
    end = run.outcomes[0]
    assert isinstance(end, Finished), run.summary()
    assert end.value is not None, "rank 0 noticed nothing"
    assert end.value.is_a(lost), end.value
    assert "rank 1" in end.value.text, end.value
    assert "spilled the tea" in end.value.text, end.value


# -- JOIN-057: a group whose ranks have met, in a world of which some never have


def be_late_in_a_part_of_the_world(ctx):
    """The last rank never builds a model; the others train on a group of their own, and the store ends before one of
    them is late for longer than a silent rank is waited for."""
    with a_store_that_ends(ctx) as end_it:
        part = dist.new_group(range(ctx.world - 1))
        if ctx.rank == ctx.world - 1:
            return ctx.store.wait(["done"])
        model, seen = ddp(ctx, models.scalar(), process_group=part), []
        time.sleep(SHORT_S)  # they meet
        if ctx.rank == 0:
            end_it()
        for iteration in range(2):
            model.zero_grad()
            loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
            time.sleep(1.6 if (ctx.rank, iteration) == (1, 1) else 0.0)
            loss.backward()
            seen.append(model.module.weight.grad.item())
        dist.barrier(group=part)
        ctx.store.set("done", "")
        return seen


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_has_met_its_group_waits_for_it_though_others_of_the_world_were_never_met(ranks):
    run = ranks.run(be_late_in_a_part_of_the_world, init=False, env=SOON, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes[:-1]):
        assert isinstance(end, Finished), run.summary()
        assert end.value == scalar_means((2,) * (ranks.world - 1)), f"rank {rank}"


# -- JOIN-057: strangers that call

#: what they say; nothing of it is what a rank says, and the first is no line at all
SAID = (b"x" * 100_000, b"\xff\n", b"[1]\n", b"{}\n", b'{"hello": "", "rank": 0}\n', b"[" * 30_000 + b"\n")


def listening():
    """The addresses at which this process can be called."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(one.getsockname())
    return found


def limits_of_silence(store):
    """How long this process's connections to a store wait for the network, in milliseconds."""
    found = set()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.getpeername()[1] == store.port:
                found.add(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    return found


def is_hung_up_on(address, said):
    with socket.create_connection(address[:2], timeout=5) as caller:
        try:
            caller.sendall(said)
            return caller.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False


def be_called_by_strangers(ctx):
    """Whether all that call where building a model has made this process listen are hung up on, and how long it waits
    for the store; what it trains then, and the error when the last rank is killed."""
    before = listening()
    model = ddp(ctx, models.scalar())
    seen = [train_once(ctx, model, 0)]
    hung_up = [is_hung_up_on(address, said) for address in listening() - before for said in SAID]
    seen.append(train_once(ctx, model, 1))
    ctx.meet("all were called")
    if ctx.rank == ctx.world - 1:
        killed()
    return hung_up, limits_of_silence(ctx.store), seen, caught(train_once, ctx, model, 2)


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_strangers_that_call_are_hung_up_on_and_disturb_nobody(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(be_called_by_strangers, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes[:-1]):
        assert isinstance(end, Finished), run.summary()
        hung_up, limits, seen, error = end.value
        assert all(hung_up), f"rank {rank}: {hung_up}"
        assert limits == {4000}, f"rank {rank}: of five seconds it waits for the store {limits} ms"
        assert seen == scalar_means((2,) * ranks.world), f"rank {rank}"
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(lost), f"rank {rank}: {error}"
        assert names_rank(error, ranks.world - 1), f"rank {rank}: {error}"


# -- JOIN-057: exchanges that a backend refuses


class Exchanging(RecordingGroup):
    """A group that starts no exchange between all."""


def refuse(*_, **__):
    raise dist.DistBackendError("the connection is gone")


for _name in ("alltoall_base", "all_to_all_single"):
    if hasattr(dist.ProcessGroup, _name):
        setattr(Exchanging, _name, refuse)


def consolidate_by_refused_exchanges(ctx):
    """What comes of a consolidation, on a group of which no failed rank is known."""
    with recorded("gloo", Exchanging):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", ctx.store), rank=ctx.rank, world_size=ctx.world
        )
        parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(4)]
        zero = ctx.subject.ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.5, momentum=0.5)
        for parameter in parameters:
            parameter.grad = torch.ones(3)
        zero.step()
        error = caught(zero.consolidate_state_dict)
        ctx.meet("all are told")
        return error


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_what_a_backend_says_of_an_exchange_that_it_refuses_comes_out(ranks):
    assert ranks.subject.PeerFailed
    for rank, error in enumerate(ranks(consolidate_by_refused_exchanges, init=False, env=UNGUARDED)):
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(dist.DistBackendError), f"rank {rank}: {error}"


# -- DDP-049: sockets of the program's


def train_with_a_limit_for_sockets(ctx):
    """Every socket that the program makes from here on has a time limit. Gradients, what a later group and the store
    tell, and whether a connection of before still waits."""
    limit, (ours, theirs) = socket.getdefaulttimeout(), socket.socketpair()
    socket.setdefaulttimeout(DEADLINE_S)
    try:
        with ours, theirs:
            store = ctx.store.clone()
            dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=ctx.rank, world_size=ctx.world)
            model = ddp(ctx, models.scalar())
            seen = [train_once(ctx, model, iteration) for iteration in range(2)]
            dist.all_reduce(number := torch.ones(1), group=dist.new_group())
            if ctx.rank == 0:
                time.sleep(LATE_S)
                store.set("late", "tea")
            return seen, number.item(), store.get("late"), os.get_blocking(ours.fileno())
    finally:
        socket.setdefaulttimeout(limit)


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_connections_stay_as_they_are_where_a_program_limits_its_sockets(ranks):
    right = scalar_means((2,) * ranks.world), float(ranks.world), b"tea", True
    for rank, told in enumerate(ranks(train_with_a_limit_for_sockets, init=False, stall_s=DEADLINE_S)):
        assert told == right, f"rank {rank}"


# -- JOIN-024: ranks that all leave out the same backward, one of them behind the others


class LateWork(dist.Work):
    """A work that ends so much later than that which it stands for."""

    def __init__(self, work, late_s):
        super().__init__()
        self._work, self._end = work, time.monotonic() + late_s

    def get_future(self):
        return self._work.get_future()

    def is_completed(self):
        return time.monotonic() > self._end and self._work.is_completed()

    def wait(self, timeout=datetime.timedelta(0)):
        left, limit_s = self._end - time.monotonic(), timeout.total_seconds()
        time.sleep(max(min(left, limit_s or left), 0))
        if time.monotonic() < self._end:
            raise RuntimeError("the time is over")
        return self._work.wait()


class Behind(RecordingGroup):
    """A group whose sums reach this process late, while it says so."""

    late_s = 0.0

    def allreduce(self, *args, **named):
        work = super().allreduce(*args, **named)
        return LateWork(work, Behind.late_s) if Behind.late_s else work


def leave_a_backward_out_behind_the_others(ctx):
    """All leave out the third backward of a context that throws, whose roll call reaches the last rank late."""
    with recorded("gloo", Behind):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", ctx.store), rank=ctx.rank, world_size=ctx.world
        )
        model, seen = ddp(ctx, models.scalar()), []

        def train():
            with model.join(throw_on_early_termination=True):
                for iteration in range(4):
                    model.zero_grad()
                    Behind.late_s = SHORT_S if (iteration, ctx.rank) == (2, ctx.world - 1) else 0.0
                    loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
                    Behind.late_s = 0.0
                    if iteration != 2:
                        loss.backward()
                        seen.append(gradient(model.module.weight))

        return caught(train), seen


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_rank_that_is_behind_may_leave_out_the_same_backward_as_the_others(ranks):
    first, second, _, fourth = scalar_means((4,) * ranks.world)
    run = ranks.run(leave_a_backward_out_behind_the_others, init=False, stall_s=DEADLINE_S)
    for rank, (error, seen) in enumerate(run.values()):
        assert error is None, f"rank {rank}: {error}"
        assert seen == [first, second, fourth], f"rank {rank}"


# -- JOIN-024: what fails on another group than that of the context


def reduce_elsewhere(ctx):
    """In a context a hook of rank 0 meets nobody on a group of the program's own, of which nobody is lost."""
    own, turns = dist.new_group(timeout=datetime.timedelta(seconds=SHORT_S)), []
    model = ddp(ctx, models.scalar())

    def reduce(_state, bucket):
        turns.append(bucket.index())
        group = own if ctx.rank == 0 and len(turns) == 2 else ctx.group
        summed = dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()
        return summed.then(lambda done: done.value()[0])

    model.register_comm_hook(None, reduce)

    def train():
        with model.join():
            for iteration in range(3):
                train_once(ctx, model, iteration)

    error = caught(train)
    ctx.meet("all are told")
    return error


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_hook_that_fails_on_another_group_is_told_to_the_others(ranks):
    lost = ranks.subject.PeerFailed
    mine, *others = ranks(reduce_elsewhere, env=UNGUARDED, stall_s=DEADLINE_S)
    assert mine is not None, "rank 0 noticed nothing"
    assert not mine.is_a(lost), mine
    for rank, error in enumerate(others, 1):
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(lost), f"rank {rank}: {error}"
        assert names_rank(error, 0), f"rank {rank}: {error}"


def differ_in_a_part_of_the_world(ctx):
    """In a context of all, ranks 1 and 2 come to two models of theirs in different orders, and rank 0 waits for them
    in the next iteration."""
    parts, model = [dist.new_group([1, 2]) for _ in range(2)], ddp(ctx, models.scalar())
    others = [ddp(ctx, models.scalar(), process_group=part) for part in parts] if ctx.rank else []

    def train():
        with model.join():
            train_once(ctx, model, 0)
            for other in others[:: -1 if ctx.rank == 2 else 1]:
                train_once(ctx, other, 0)
            train_once(ctx, model, 1)

    error = caught(train)
    ctx.meet("all are told")
    return error


@check("JOIN-024", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_differs_on_a_part_of_the_group_tells_the_rest_of_it(ranks):
    differ, lost = ranks.subject.CollectivesDiffer, ranks.subject.PeerFailed
    waiting, *others = ranks(differ_in_a_part_of_the_world, env=SOON, stall_s=DEADLINE_S)
    for rank, error in enumerate(others, 1):
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(differ), f"rank {rank}: {error}"
    assert waiting is not None, "rank 0 noticed nothing"
    assert waiting.is_a(lost), waiting
    assert names_rank(waiting, 1) or names_rank(waiting, 2), waiting


# -- JOIN-024: sparse gradients behind a failure


def look_up_behind_a_failure(ctx):
    """Rank 0 leaves a context in which the others are in an iteration; then all train a table. The errors of that."""
    model, table = ddp(ctx, models.scalar()), ddp(ctx, torch.nn.Embedding(4, 1, sparse=True))

    def train():
        with model.join():
            if ctx.rank == 0:
                raise BadBatch("spilled the tea")
            train_once(ctx, model, 0)

    def look_up():
        table(torch.tensor([1], device=ctx.device)).sum().backward()

    assert caught(train) is not None
    ctx.meet("all have left")
    return [caught(look_up) for _ in range(3)]


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_sparse_gradients_behind_a_failure_are_refused_by_the_same_error_each_time(ranks):
    assert ranks.subject.PeerFailed
    for rank, told in enumerate(ranks(look_up_behind_a_failure, stall_s=DEADLINE_S)):
        assert told == [told[0]] * 3, f"rank {rank}: {told}"
        assert told[0] is None or told[0].is_a(RuntimeError), f"rank {rank}: {told}"


# -- JOIN-024: a store in which a thread of the program waits


def fail_while_a_thread_waits_in_the_store(ctx):
    """A thread of rank 0 waits for a key for longer than a silent store is waited for; then rank 1 fails."""
    store = ctx.store.clone()
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=ctx.rank, world_size=ctx.world)
    model, waiting = ddp(ctx, models.scalar()), threading.Thread(target=store.get, args=("all are told",), daemon=True)

    def train():
        with model.join():
            train_once(ctx, model, 0)
            if ctx.rank == 0:
                waiting.start()
                time.sleep(LATE_S)
            if ctx.rank == 1:
                time.sleep(2 * float(SOON[DETECTION]))
                raise BadBatch("spilled the tea")
            train_once(ctx, model, 1)

    error = caught(train)
    ctx.store.set("all are told", "")
    ctx.meet("all are told")
    return error


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_peers_are_told_while_a_thread_of_the_program_waits_in_the_store(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(fail_while_a_thread_waits_in_the_store, init=False, env=SOON, stall_s=DEADLINE_S)
    for rank, error in enumerate(run.values()):
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(BadBatch if rank == 1 else lost), f"rank {rank}: {error}"
        assert names_rank(error, 1) or rank == 1, f"rank {rank}: {error}"


# -- JOIN-024: errors of one's own behind another's


def fail_behind_another(ctx):
    """Rank 0 leaves a context by an error, and then the others do by errors of their own: these, with their notes."""
    model = ddp(ctx, models.scalar())

    def train():
        with model.join():
            train_once(ctx, model, 0)
            if ctx.rank:
                ctx.store.wait(["rank 0 has left"])
            raise BadBatch("spilled the tea")

    error = with_notes(train)
    ctx.store.set("rank 0 has left", "")
    return error


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_an_error_of_ones_own_behind_anothers_comes_out_and_names_that_rank(ranks):
    assert ranks.subject.PeerFailed
    for rank, error in enumerate(ranks(fail_behind_another)):
        assert error is not None, f"rank {rank}"
        assert error.is_a(BadBatch), f"rank {rank}: {error}"
        assert names_rank(error, 0) == (rank > 0), f"rank {rank}: {error}"


# -- JOIN-024: contexts that fail one after the other


def fail_twice(ctx):
    """All leave two contexts by errors, rank 1 late; the gradients of a third. Nobody waits in the second one."""
    model = ddp(ctx, models.scalar())

    def fail():
        with model.join():
            raise BadBatch("spilled the tea")

    for _ in range(2):
        assert caught(fail).is_a(BadBatch)
        time.sleep(2 * LATE_S if ctx.rank == 1 else 0.0)
    with model.join():
        return [train_once(ctx, model, iteration) for iteration in range(2)]


@check("JOIN-024", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_a_rank_that_is_late_between_contexts_that_failed_goes_on_with_the_others(ranks):
    assert ranks(fail_twice) == [scalar_means((2,) * ranks.world)] * ranks.world
