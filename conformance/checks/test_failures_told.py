"""Failures whose cause is not the nearest one, waits that will never end, and what only looks like a failure."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import summing
from conformance.fixtures.endings import end_by, killed
from conformance.fixtures.errors import BadBatch
from conformance.fixtures.machines import ensure_one_machine
from conformance.fixtures.training import ddp, gradient, private, scalar_means
from conformance.ranks import Finished, caught
from conformance.subjects import DETECTION

SOON = {DETECTION: "1"}  # seconds of silence
LATER = {DETECTION: "3"}  # waits that have lasted for longer look around more seldom
LONGER_S = 2.5
DEADLINE_S = 30.0


# -- JOIN-057: who is named


def error_of(run, rank):
    """What this rank has returned as its error, though others have been lost."""
    end = run.outcomes[rank]
    assert isinstance(end, Finished), run.summary()
    assert end.value is not None, f"rank {rank} noticed nothing: {run.summary()}"
    return end.value


def hide_the_cause(ctx):
    """Rank 2 is killed; rank 0 leaves by an error of its own in the place of the collective's; rank 1 comes later."""
    model = ddp(ctx, models.scalar())

    def train():
        with model.join():
            loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
            if ctx.rank == 2:
                killed()
            if ctx.rank == 1:
                ctx.store.wait(["left"])
                return loss.backward()
            try:
                loss.backward()
            except RuntimeError:
                raise BadBatch("spilled the tea") from None

    error = caught(train)
    ctx.store.set("left", "")
    return error


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_leaves_by_another_error_because_of_a_lost_rank_is_not_named_in_its_place(ranks):
    lost = ranks.subject.PeerFailed
    run = ranks.run(hide_the_cause, stall_s=DEADLINE_S)
    assert error_of(run, 0).is_a(BadBatch), run.summary()
    second = error_of(run, 1)
    assert second.is_a(lost), second
    assert "rank 2" in second.text, second
    assert "rank 0" not in second.text, second


def lose_one_long_after_another_has_ended(ctx):
    """Rank 0 ends in good order; rank 1 is killed a while later, when rank 2 still computes."""
    model = ddp(ctx, models.scalar())
    for iteration in range(3):  # then no forward needs the others any more
        model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
    if ctx.rank == 0:
        return None
    loss = model(models.divisible_scalar(ctx.rank, 3)).sum()
    time.sleep(LONGER_S)
    if ctx.rank == 1:
        killed()
    time.sleep(1)
    return caught(loss.backward)


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_rank_that_is_killed_is_named_though_another_has_long_ended_in_good_order(ranks):
    lost = ranks.subject.PeerFailed
    error = error_of(ranks.run(lose_one_long_after_another_has_ended, stall_s=DEADLINE_S), 2)
    assert error.is_a(lost), error
    assert "rank 1" in error.text, error


def fail_on_another_group(ctx):
    """Rank 2 is killed, which rank 1 learns on a group with it; then that one ends, too, on which rank 0 waits."""
    groups = [dist.new_group([first, first + 1]) for first in range(2)]
    mine = [ddp(ctx, models.scalar(), process_group=groups[place]) for place in range(2) if 0 <= ctx.rank - place < 2]
    for model in mine:
        model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    ctx.meet("all are trained")
    if ctx.rank == 2:
        killed()
    if ctx.rank == 1:
        assert caught(lambda: model(models.divisible_scalar(1, 1)).sum().backward()) is not None
        killed()
    return caught(lambda: model(models.divisible_scalar(0, 1)).sum().backward())


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_ends_because_of_a_rank_that_others_do_not_have_is_named_to_them(ranks):
    lost = ranks.subject.PeerFailed
    error = error_of(ranks.run(fail_on_another_group, stall_s=DEADLINE_S), 0)
    assert error.is_a(lost), error
    assert "rank 1" in error.text, error


# -- JOIN-057: what is no failure


def suspend_all(ctx):
    """All ranks are stopped at once, for longer than a silent one is waited for, and go on."""
    model, seen = ddp(ctx, models.scalar(), process_group=dist.new_group()), []
    with model.join():
        for iteration in range(1 + ctx.rank):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            seen.append(gradient(model.module.weight))
            if not iteration:
                waking = subprocess.Popen(["sh", "-c", f"sleep {LONGER_S}; kill -CONT {os.getpid()}"])
                ctx.meet("all are stopped")
                os.kill(os.getpid(), signal.SIGSTOP)
                waking.wait()
    return seen


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_are_all_suspended_and_go_on_take_nobody_for_lost(ranks):
    schedule = tuple(range(1, ranks.world + 1))
    run = ranks.run(suspend_all, env=SOON, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes):
        assert isinstance(end, Finished), run.summary()
        assert end.value == scalar_means(schedule)[: schedule[rank]], f"rank {rank}"


def be_slow_behind_a_loss(ctx):
    """The others go on without rank 2, and one of them is once slower than they were to wait for each other."""
    model, regroup = ddp(ctx, models.scalar()), ctx.subject.regroup
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
    if ctx.rank == 2:
        killed()
    assert caught(loss.backward) is not None
    regroup(model, optimizer, 0, limit_s=2.0)
    seen = []
    for iteration in range(3):
        model.zero_grad()
        loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
        if (ctx.rank, iteration) == (0, 1):
            time.sleep(LONGER_S)
        loss.backward()
        seen.append(gradient(model.module.weight))
    return seen


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_went_on_without_another_may_be_as_slow_as_before(ranks):
    run = ranks.run(be_slow_behind_a_loss, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes[:2]):
        assert isinstance(end, Finished), run.summary()
        assert end.value == scalar_means((3, 3)), f"rank {rank}"


# -- DDP-049: ranks that wait for each other


def train_in_turns(ctx, hooked, block):
    """Two models on two groups; from the third iteration on rank 1 trains them in the other order. Each rank has a
    model of its own, too."""
    groups = [dist.new_group([rank]) for rank in range(ctx.world)]
    own = ddp(ctx, models.scalar(), process_group=groups[ctx.rank])
    own(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    wrapped = [ddp(ctx, models.scalar(), process_group=dist.new_group()) for _ in range(2)]
    for model in wrapped if hooked else ():
        model.register_comm_hook(model.process_group, summing)

    def train():
        with wrapped[0].join(enable=block), wrapped[1].join(enable=block):
            for iteration in range(3):
                turned = iteration == 2 and ctx.rank == 1
                for model in reversed(wrapped) if turned else wrapped:
                    model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()

    return caught(train)


def train_with_the_store_on_rank_0(ctx):
    ensure_one_machine(ctx, "the store is met by the loopback")
    if ctx.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ctx.store.set("port", str(store.port))
    else:
        store = dist.TCPStore("127.0.0.1", int(ctx.store.get("port")))
    dist.init_process_group("gloo", store=store, rank=ctx.rank, world_size=ctx.world)
    error = train_in_turns(ctx, False, True)
    ctx.meet("nobody needs the store any more")
    return error


def train_with_the_store_in_a_file(ctx):
    ensure_one_machine(ctx, "the store is a file that every rank sees")
    if ctx.rank == 0:
        ctx.store.set("folder", tempfile.mkdtemp())
    folder = Path(ctx.store.get("folder").decode())
    store = dist.FileStore(str(folder / "store"), ctx.world)
    dist.init_process_group("gloo", store=store, rank=ctx.rank, world_size=ctx.world)
    error = train_in_turns(ctx, False, True)
    ctx.meet("nobody needs the store any more")
    if ctx.rank == 0:
        shutil.rmtree(folder)
    return error


def all_are_told(run, differ):
    for rank, end in enumerate(run.outcomes):
        assert isinstance(end, Finished), run.summary()
        assert end.value is not None, f"rank {rank}"
        assert end.value.is_a(differ), f"rank {rank}: {end.value}"


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_wait_for_each_other_beside_a_hook_are_all_told(ranks):
    differ = ranks.subject.CollectivesDiffer
    all_are_told(ranks.run(train_in_turns, True, False, env=SOON, stall_s=DEADLINE_S), differ)


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_wait_for_each_other_in_contexts_are_told_where_one_has_the_store(ranks):
    differ = ranks.subject.CollectivesDiffer
    all_are_told(ranks.run(train_with_the_store_on_rank_0, init=False, env=SOON, stall_s=DEADLINE_S), differ)


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_wait_for_each_other_in_contexts_are_told_where_the_store_is_a_file(ranks):
    differ = ranks.subject.CollectivesDiffer
    all_are_told(ranks.run(train_with_the_store_in_a_file, init=False, env=SOON, stall_s=DEADLINE_S), differ)


def differ_and_end(ctx):
    """Ranks 0 and 1 come to two models of theirs in different orders, and each ends its process as soon as it is told.
    What they were told, by rank 2."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    if ctx.rank == 2:
        return [ctx.store.get(f"{rank} is told").decode() for rank in range(2)]
    wrapped = [ddp(ctx, models.scalar(), process_group=group) for group in groups]

    def train():
        for iteration in range(3):
            time.sleep(0.15 * ctx.rank * (iteration == 2))  # so that they do not look around at the same moments
            for model in reversed(wrapped) if iteration == 2 and ctx.rank == 1 else wrapped:
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()

    ctx.store.set(f"{ctx.rank} is told", str(caught(train)))
    return os._exit(1)


@check("DDP-049", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_wait_for_each_other_are_told_so_though_the_first_to_notice_ends_at_once(ranks):
    differ = ranks.subject.CollectivesDiffer.__name__
    run = ranks.run(differ_and_end, env=LATER, stall_s=DEADLINE_S)
    end = run.outcomes[2]
    assert isinstance(end, Finished), run.summary()
    for rank, told in enumerate(end.value):
        assert told.startswith(differ), f"rank {rank}: {told}"


# -- DDP-049: what only looks like it


def work_slowly_in_hooks(ctx):
    """All wait for longer than a failure takes to be noticed, for what each does by itself and not for each other."""
    model = ddp(ctx, nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1, affine=False)))

    def later(value):
        future = torch.futures.Future()
        threading.Timer(LONGER_S, future.set_result, [value]).start()
        return future

    model.register_comm_hook(None, lambda _, bucket: later(bucket.buffer() + 1.0))
    private(model, "_register_buffer_comm_hook")(None, lambda *_: [later(None)])
    model(models.divisible_scalar(ctx.rank, 0) * torch.ones(2, 1)).sum().backward()
    return gradient(model.module[0].weight)


@check("DDP-095", "COMM-001", worlds=(2,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_hooks_that_work_for_long_by_themselves_are_waited_for(ranks):
    run = ranks.run(work_slowly_in_hooks, env=SOON, stall_s=DEADLINE_S)
    for end in run.outcomes:
        assert isinstance(end, Finished), run.summary()
        assert end.value == 1.0, run.summary()


def train_in_two_threads(ctx):
    """Two models on two groups of all ranks, each in a thread of its own; rank 0 computes long for the one, the other
    ranks for the other, while their other threads wait."""
    wrapped = [ddp(ctx, models.scalar(), process_group=dist.new_group()) for _ in range(2)]
    found = [None, None]

    def train(place):
        loss = wrapped[place](models.divisible_scalar(ctx.rank, place)).sum()
        if place == min(ctx.rank, 1):
            time.sleep(LONGER_S)
        found[place] = caught(loss.backward) or gradient(wrapped[place].module.weight)

    threads = [threading.Thread(target=train, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_wait_in_one_thread_and_compute_in_another_are_not_taken_for_stalled(ranks):
    run = ranks.run(train_in_two_threads, env=SOON, stall_s=DEADLINE_S)
    for end in run.outcomes:
        assert isinstance(end, Finished), run.summary()
        assert end.value == scalar_means((2,) * ranks.world), run.summary()


def be_slow_in_turns(ctx):
    """Each rank is late once, for longer than half of the detection time; so each has waited as long for the other."""
    model, seen = ddp(ctx, models.scalar()), []
    for iteration in range(4):
        model.zero_grad()
        loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
        if iteration % 2 == ctx.rank:
            time.sleep(1.4)
        loss.backward()
        seen.append(gradient(model.module.weight))
    return seen


@check("DDP-049", worlds=(2,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_ranks_that_are_late_in_turns_do_not_wait_for_each_other(ranks):
    run = ranks.run(be_slow_in_turns, env=SOON, stall_s=DEADLINE_S)
    for end in run.outcomes:
        assert isinstance(end, Finished), run.summary()
        assert end.value == scalar_means((4, 4)), run.summary()


# -- JOIN-057: what follows from a loss


def end_after_a_loss(ctx):
    """Rank 0 is killed; rank 1 learns of it and ends at once, without a word; rank 2 comes to it later."""
    model = ddp(ctx, models.scalar())
    loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
    if ctx.rank == 0:
        killed()
    if ctx.rank == 2:
        time.sleep(LONGER_S)
        return caught(loss.backward)
    assert caught(loss.backward) is not None
    return os._exit(1)


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_ends_because_another_was_lost_is_not_named_beside_it(ranks):
    lost = ranks.subject.PeerFailed
    error = error_of(ranks.run(end_after_a_loss, stall_s=DEADLINE_S), 2)
    assert error.is_a(lost), error
    assert "rank 0 has stopped answering" in error.text, error
    assert "rank 1 has stopped answering" not in error.text, error


# -- JOIN-057: what an error says


def stopped_for_long():
    """This process stands still for longer than it is waited for, and goes on."""
    with subprocess.Popen(["sh", "-c", f"sleep {LONGER_S}; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


def lose_one_of_a_part(ctx, end):
    """Ranks 1 and 2 train on a group of theirs, and the latter ends in the third iteration, when it has said what it
    does. The error of the former, and which process the latter was."""
    part = dist.new_group([1, 2])
    if ctx.rank == 0:
        return ctx.store.wait(["told"])
    model, error = ddp(ctx, models.scalar(), process_group=part), None
    for iteration in range(3):
        loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
        if iteration == 2:
            ctx.store.set(f"process {ctx.rank}", f"process {os.getpid()} on {socket.gethostname()}")
            time.sleep(0.5)  # they meet, and say what they do
            if ctx.rank == 2:
                end()
        error = caught(loss.backward)
    ctx.store.set("told", "")
    return error and (error, ctx.store.get("process 2").decode())


#: by what becomes of a rank: how, and what the error says of it
LOST = {
    "killed": (killed, "has stopped answering ({process} was killed"),
    "stopped": (stopped_for_long, "no sign of life for 1 s or more, as rank 1 noticed ({process} is frozen"),
}


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S, scenarios=LOST)
def test_an_error_says_which_process_was_lost_what_it_did_and_what_was_waited_for(ranks, scenario):
    end, what = scenario
    lost = ranks.subject.PeerFailed
    run = ranks.run(lose_one_of_a_part, end, env=SOON, stall_s=DEADLINE_S)
    error, process = error_of(run, 1)
    assert error.is_a(lost), error
    where = r"bucket 0 in iteration 3 of model \d+\."
    for words in (
        rf"\brank 1 \(global rank 2\) .*{re.escape(what.format(process=process))}",
        rf"The last thing it said it had started: {where}", rf"This rank was waiting for: {where}",
    ):  # fmt: skip
        assert re.search(words, error.text), f"{words} is not said by {error}"


def end_because_of_one_that_raised(ctx):
    """Rank 0 leaves a context of ranks 0 and 1 by an error; rank 1, which is told, ends its program by that, and then
    rank 0 does. The error of rank 2, which waits for both elsewhere."""
    part, everybody = dist.new_group([0, 1]), ddp(ctx, models.scalar())
    everybody(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    if ctx.rank == 2:
        return caught(lambda: everybody(models.divisible_scalar(2, 1)).sum().backward())
    model = ddp(ctx, models.scalar(), process_group=part)
    try:
        with model.join():
            if ctx.rank == 0:
                raise BadBatch("spilled the tea")
            model(models.divisible_scalar(1, 0)).sum().backward()
    except RuntimeError as error:  # of rank 1
        ctx.store.set("told", "")
        end_by(error)
    except BadBatch as error:
        ctx.store.wait(["told"])
        end_by(error)


@check("JOIN-057", worlds=(3,), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_who_ends_because_another_has_raised_is_not_named_beside_it(ranks):
    lost = ranks.subject.PeerFailed
    error = error_of(ranks.run(end_because_of_one_that_raised, stall_s=DEADLINE_S), 2)
    assert error.is_a(lost), error
    assert "the program of rank 0" in error.text, error
    assert "spilled the tea" in error.text, error
    assert "the program of rank 1" not in error.text, error
