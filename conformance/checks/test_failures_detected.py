"""What the failure guard tells of a rank that is lost, also where ranks have not met, cannot, or are many."""

import contextlib
import itertools
import os
import re
import signal
import socket
import threading
import time

import torch
import torch.distributed as dist

from conformance.api.checking import check
from conformance.checks.test_failures_of_programs import be_stopped, keep_the_interpreter_asleep, raise_it
from conformance.checks.test_failures_unguarded import train_once
from conformance.checks.test_failures_unusual import Behind
from conformance.fixtures import models
from conformance.fixtures.endings import killed
from conformance.fixtures.machines import ensure_one_machine, out_of_reach
from conformance.fixtures.training import ddp, scalar_means
from conformance.ranks import Finished, caught
from conformance.ranks.recording import recorded
from conformance.subjects import DETECTION

SOON = {DETECTION: "1"}  # seconds of silence
BEAT_S = 0.2  # how often a rank then says what it does, at least
LONGER_S = 2.5
DEADLINE_S = 20.0


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def ended(run, ranks):
    """What these ranks have brought home, by rank."""
    for rank in ranks:
        assert isinstance(run.outcomes[rank], Finished), run.summary()
    return {rank: run.outcomes[rank].value for rank in ranks}


def assert_lost(error, subject, named, rank):
    """An error that names these ranks, in this order, and no other."""
    assert error is not None, f"rank {rank} noticed nothing"
    assert error.is_a(subject.PeerFailed), f"rank {rank}: {error}"
    found = re.findall(r"rank (\d+)(?= has stopped| \(process)", error.text)
    assert list(dict.fromkeys(map(int, found))) == list(named), f"rank {rank}: {error}"


# -- what is told


def be_lost(ctx, how):
    """Rank 1 is lost after two iterations of its second model. What the others are told, how long that took, and
    the process of rank 1."""
    wrapped = [ddp(ctx, models.scalar()) for _ in range(2)]
    ctx.store.set(f"process of {ctx.rank}", str(os.getpid()))
    for iteration in range(2):
        train_once(ctx, wrapped[1], iteration)
    if ctx.rank == 1:
        time.sleep(3 * BEAT_S)
        how()
    begun = time.monotonic()
    error = caught(train_once, ctx, wrapped[1], 2)
    lasted, process = time.monotonic() - begun, int(ctx.store.get("process of 1"))
    if ctx.store.add("told", 1) == ctx.world - 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return error, lasted, process


@check(
    "JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={"killed": (killed, "was killed"), "stopped": (stopped, "no sign of life for 1 s")},
)  # fmt: skip
def test_what_is_told_of_a_lost_rank_is_that_ranks(ranks, scenario):
    how, words = scenario
    assert ranks.subject.PeerFailed
    run = ranks.run(be_lost, how, env=SOON, stall_s=DEADLINE_S)
    others = [rank for rank in range(ranks.world) if rank != 1]
    for rank, (error, lasted, process) in ended(run, others).items():
        assert_lost(error, ranks.subject, [1], rank)
        assert re.findall(r"process (\d+) on (\S+?)[ )]", error.text) == [(str(process), socket.gethostname())], error
        assert words in error.text, error
        noticed = re.findall(r"rank (\d+) noticed", error.text)
        assert len(noticed) == (how is stopped), error
        assert set(map(int, noticed)) <= set(others), error
        assert re.findall(r"iteration (\d+) of model (\d+)", error.text) == [("2", "1"), ("3", "1")], error
        assert how is killed or lasted > 0.5, f"rank {rank}: after {lasted:.2f} s"


# -- ranks that have ended before others come


def come_when_the_others_have_ended(ctx):
    """Rank 2 is killed, and the program of rank 1 ends by an error of its own, before rank 0 builds its first model."""
    part = dist.new_group([1, 2])
    if ctx.rank:
        model = ddp(ctx, models.scalar(), process_group=part)
        train_once(ctx, model, 0)
        if ctx.rank == 2:
            killed()
        error = caught(train_once, ctx, model, 1)
        ctx.store.set("told", error.text if error else "")
        raise_it()
    told = ctx.store.get("told").decode()
    time.sleep(2 * BEAT_S)
    return told, caught(ddp, ctx, models.scalar())


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_have_ended_before_another_has_met_them_are_both_named(ranks):
    assert ranks.subject.PeerFailed
    told, error = ended(ranks.run(come_when_the_others_have_ended, stall_s=DEADLINE_S), [0])[0]
    assert "global rank 2" in told, told
    assert error is not None, "rank 0 noticed nothing"
    assert error.is_a(ranks.subject.PeerFailed), error
    assert re.search(r"rank 1 .*spilled the tea.*rank 2 has stopped answering .* was killed", error.text), error


# -- ranks that cannot call each other


def train_without_calls(ctx, mark, how):
    """Ranks train that reach each other by the group and the store only; children of one end. Then rank 2 is lost.
    The gradients, and what the others are told."""
    ensure_one_machine(ctx, "on which machines ranks are is what they are shown")
    with out_of_reach(ctx, mark):
        model = ddp(ctx, models.scalar())
        seen = [train_once(ctx, model, 0)]
        for _ in range(6 if ctx.rank == 1 else 0):
            child = os.fork()
            if not child:
                raise_it()
            os.waitpid(child, 0)
        time.sleep(2 * float(os.environ[DETECTION]) if how is not killed else 0.0)
        seen.append(train_once(ctx, model, 1))
        if ctx.rank == 2:
            return how() if how is killed else how(LONGER_S)
        begun = time.monotonic()
        error = caught(train_once, ctx, model, 2)
        return seen, error, time.monotonic() - begun


@check(
    "JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={
        "stopped": ("", be_stopped, SOON),
        "asleep, in containers": ("pid", keep_the_interpreter_asleep, SOON),
        "killed, on machines": ("boot_id", killed, {DETECTION: "2.2"}),
    },
)  # fmt: skip
def test_ranks_that_cannot_call_each_other_train_and_learn_whom_they_lose(ranks, scenario):
    mark, how, env = scenario
    assert ranks.subject.PeerFailed
    run = ranks.run(train_without_calls, mark, how, env=env, stall_s=DEADLINE_S)
    for rank, (seen, error, lasted) in ended(run, [0, 1]).items():
        assert seen == scalar_means((2,) * ranks.world), f"rank {rank}"
        assert_lost(error, ranks.subject, [2], rank)
        assert f"as rank {rank} noticed" in error.text, error
        assert lasted > float(env[DETECTION]) / 2, f"rank {rank}: after {lasted:.2f} s"


# -- many ranks, which are not all connected


def lose_one_of_six(ctx):
    """Ranks 2 and 5 wait for each other; rank 3 is killed in an iteration of all, rank 4 ends because of that, and rank
    1 comes later. What the ranks are told of either."""
    pair = [dist.new_group([2, 5]) for _ in range(2)]
    wrapped = [ddp(ctx, models.scalar(), process_group=group) for group in pair] if ctx.rank in (2, 5) else []
    model, differs = ddp(ctx, models.scalar()), None
    for each in wrapped[:: 1 if ctx.rank == 2 else -1]:
        differs = differs or caught(train_once, ctx, each, 0)
    ctx.meet("two have waited for each other")
    loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
    if ctx.rank == 3:
        killed()
    time.sleep(LONGER_S / 2 if ctx.rank == 1 else 0.0)
    error = caught(loss.backward)
    if ctx.rank == 4:
        os._exit(1)
    return differs, error


@check("JOIN-057", worlds=(2,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_what_happens_among_many_ranks_is_told_to_all(ranks):
    assert ranks.subject.PeerFailed
    run = ranks.run(lose_one_of_six, world=6, env=SOON, stall_s=DEADLINE_S)
    for rank, (differs, error) in ended(run, [0, 1, 2, 5]).items():
        assert_lost(error, ranks.subject, [3], rank)
        if rank in (2, 5):
            assert differs is not None, f"rank {rank} noticed nothing"
            assert differs.is_a(ranks.subject.CollectivesDiffer), f"rank {rank}: {differs}"


# -- DDP-049: ranks that wait for each other, and what only looks like it


def go_on_as_the_first_to_notice(ctx):
    """Ranks wait for each other on two groups. Rank 0 comes last, and looks most often; once it is told, it sends the
    others something on a third."""
    wrapped = [ddp(ctx, models.scalar(), process_group=dist.new_group()) for _ in range(2)]
    for iteration, model in itertools.product(range(3), wrapped):  # then no forward needs the others any more
        train_once(ctx, model, iteration)
    loss = wrapped[ctx.rank == 0](models.divisible_scalar(ctx.rank, 3)).sum()
    time.sleep(LONGER_S if ctx.rank == 0 else 0.0)
    error, message = caught(loss.backward), torch.zeros(1)
    if ctx.rank == 0:
        for other in range(1, ctx.world):
            dist.send(message, other)
    else:
        dist.recv(message, 0)
    return error


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_wait_for_each_other_are_told_though_the_first_of_them_goes_on(ranks):
    differ = ranks.subject.CollectivesDiffer
    run = ranks.run(go_on_as_the_first_to_notice, env=SOON, stall_s=DEADLINE_S)
    for rank, error in ended(run, range(ranks.world)).items():
        assert error is not None, f"rank {rank} noticed nothing"
        assert error.is_a(differ), f"rank {rank}: {error}"


@contextlib.contextmanager
def bytes_that_move():
    """A connection of this process, on which a byte moves now and then."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, over = server.accept()[0], threading.Event()

        def move():
            while not over.wait(0.05):
                ours.sendall(b"x")
                theirs.recv(1)

        moving = threading.Thread(target=move)
        moving.start()
        try:
            yield
        finally:
            over.set()
            moving.join()
            theirs.close()


def reduce_over_a_slow_network(ctx):
    """A reduction takes longer than ranks may wait for each other, while bytes move at the last rank."""
    with recorded("gloo", Behind):
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("group", ctx.store), rank=ctx.rank, world_size=ctx.world
        )
        model = ddp(ctx, models.scalar())
        seen = [train_once(ctx, model, 0)]
        Behind.late_s = LONGER_S
        try:
            with bytes_that_move() if ctx.rank == ctx.world - 1 else contextlib.nullcontext():
                seen.append(train_once(ctx, model, 1))
        finally:
            Behind.late_s = 0.0
        return seen


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_between_which_bytes_move_do_not_wait_for_each_other(ranks):
    run = ranks.run(reduce_over_a_slow_network, init=False, env=SOON, stall_s=DEADLINE_S)
    for rank, seen in ended(run, range(ranks.world)).items():
        assert seen == scalar_means((2,) * ranks.world), f"rank {rank}"
