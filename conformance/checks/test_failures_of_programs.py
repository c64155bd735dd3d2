"""What a rank's program does to its peers: how it ends, what it forks, how long it stands still, and Ctrl-C."""

import atexit
import contextlib
import ctypes
import gc
import itertools
import multiprocessing.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

from conformance.api.checking import check
from conformance.fixtures import models
from conformance.fixtures.comm_hooks import summing
from conformance.fixtures.errors import BadBatch
from conformance.fixtures.machines import ensure_one_machine
from conformance.fixtures.training import ddp, gradient, scalar_means
from conformance.ranks import Finished, caught
from conformance.subjects import DETECTION

SOON = {DETECTION: "1"}  # seconds of silence
NEVER = {DETECTION: "60"}
MEETS_S = 0.5  # the ranks each other
STANDS_STILL_S = 2.0
COMPUTES_S = 1.4
DEADLINE_S = 15.0
INTERRUPTIONS, LATE_S, BEFORE_ITS_END_S = 5, 0.045, 0.008


def others_are_told(ranks, function, *args, **options):
    """The run of a function in which rank 1 is lost, and the errors of the others, by rank: each names it."""
    lost = ranks.subject.PeerFailed
    run, errors = ranks.run(function, *args, stall_s=DEADLINE_S, **options), {}
    for rank, end in enumerate(run.outcomes):
        if rank != 1:
            assert isinstance(end, Finished), run.summary()
            assert end.value is not None, f"rank {rank} noticed nothing"
            assert end.value.is_a(lost), f"rank {rank}: {end.value}"
            assert "rank 1" in end.value.text, f"rank {rank}: {end.value}"
            errors[rank] = end.value
    return run, errors


# -- JOIN-057: how a program ends


def at_the_end(error=None):
    """What Python does at the end of a program, which may have printed an error that nobody caught."""
    if error is not None:
        sys.last_value = error
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    os._exit(0)


def raise_it():
    """By an error with a long text, as of a batch that is printed."""
    try:
        raise BadBatch("spilled the tea " * 50_000)
    except BadBatch as error:
        at_the_end(error)


def raise_it_in_a_child():
    try:
        raise BadBatch("spilled the tea")
    finally:
        multiprocessing.util._exit_function()
        os._exit(1)


def exit_for_it_in_a_child():
    try:
        try:
            raise BadBatch("spilled the tea")
        except BadBatch:
            sys.exit(1)
    finally:
        multiprocessing.util._exit_function()
        os._exit(1)


def take_its_groups_down():
    """And live on for a while."""
    dist.destroy_process_group()
    time.sleep(2.0)
    os._exit(0)


def exit_well_in_a_child():
    try:
        sys.exit(0)
    finally:
        multiprocessing.util._exit_function()
        os._exit(0)


#: by name: how the program of rank 1 ends, and whether it ends by an error
ENDS = {
    "raises": (raise_it, True),
    "raises in a child of multiprocessing's": (raise_it_in_a_child, True),
    "exits for an error in such a child": (exit_for_it_in_a_child, True),
    "exits well in such a child": (exit_well_in_a_child, False),
    "has no more inputs": (at_the_end, False),
}
#: the same, and one that only takes part no longer
LEAVING = {**ENDS, "takes its groups down": (take_its_groups_down, False)}


def end_before_the_others(ctx, end):
    """Rank 1 has one iteration and then ends, without a context; the others have two."""
    model = ddp(ctx, models.scalar())

    def train():
        for iteration in range(2):
            model.zero_grad()
            model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
            if ctx.rank == 1:
                end()

    return caught(train)


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S, scenarios=LEAVING)
def test_peers_of_a_program_that_ends_before_them_are_told_which_one_and_by_what_error(ranks, scenario):
    end, raises = scenario
    _, errors = others_are_told(ranks, end_before_the_others, end)
    for rank, error in errors.items():
        assert ("spilled the tea" in error.text) == raises, f"rank {rank}: {error}"
        assert "killed" not in error.text, f"rank {rank}: {error}"


# -- JOIN-057: what lives on, and who


def leave_a_child_behind(ctx):
    """Rank 1 is killed, and a child that it has forked, as a loader of data does, holds copies of its connections."""
    model = ddp(ctx, models.scalar())
    loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
    if ctx.rank == 1:
        time.sleep(MEETS_S)
        child = os.fork()
        if not child:
            os.setsid()  # it is not ended with its parent
            time.sleep(2 * DEADLINE_S)
            os._exit(0)
        ctx.store.set("child", str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    error = caught(loss.backward)
    ctx.store.add("told", 1)
    if ctx.rank == 0:
        while ctx.store.add("told", 0) < ctx.world - 1:
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(ctx.store.get("child")), signal.SIGKILL)
    return error


@check("JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_rank_that_is_killed_is_missed_at_once_though_a_child_of_it_lives_on(ranks):
    others_are_told(ranks, leave_a_child_behind, env=NEVER)


def let_children_end(ctx, ends):
    """The last rank forks children, as programs do to save something meanwhile; the gradients of iterations behind
    the end of each, for which the others wait."""
    model, seen = ddp(ctx, models.scalar()), []
    model(models.divisible_scalar(ctx.rank, 0)).sum().backward()
    for iteration, (end, _) in enumerate(ends):
        model.zero_grad()
        if ctx.rank == ctx.world - 1:
            time.sleep(MEETS_S)
            child = os.fork()
            if not child:
                end()
            os.waitpid(child, 0)
            time.sleep(MEETS_S)
        model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
        seen.append(gradient(model.module.weight))
    return seen


@check("DDP-049", worlds=(2, 3), backends=("gloo",), deadline_s=DEADLINE_S)
def test_a_child_that_ends_is_not_taken_for_its_parent(ranks):
    ends = list(ENDS.values())
    means = scalar_means((len(ends),) * ranks.world)
    assert ranks(let_children_end, ends) == [means] * ranks.world


def be_stopped(seconds):
    with subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"]):
        os.kill(os.getpid(), signal.SIGSTOP)


def keep_the_interpreter_asleep(seconds):
    """As in a call that waits for something in vain, and lets no other thread go on."""
    ctypes.PyDLL(None).usleep(int(1e6 * seconds))


def stand_still_for_too_long(ctx, stand_still):
    """Rank 1 stands still for longer than it is waited for, and then goes on, as the others do without it; what it
    hears.

    What the others had started may end well.
    """
    regroup, model = ctx.subject.regroup, ddp(ctx, models.scalar())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    def train():
        for iteration in range(3):
            loss = model(models.divisible_scalar(ctx.rank, iteration)).sum()
            if iteration == 1:
                time.sleep(MEETS_S)
            if (ctx.rank, iteration) == (1, 1):
                stand_still(STANDS_STILL_S)
            loss.backward()

    error = caught(train)
    ctx.meet("all are told")  # an end that comes earlier is not what is meant
    if ctx.rank != 1:
        assert regroup(model, optimizer, 1).ranks == tuple(rank for rank in range(ctx.world) if rank != 1)
    ctx.meet("the others have gone on")
    return error if ctx.rank != 1 else (error, caught(regroup, model, optimizer, 1))


@check(
    "JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={"stopped": be_stopped, "asleep": keep_the_interpreter_asleep},
)  # fmt: skip
def test_a_rank_that_goes_on_after_it_was_given_up_learns_that_it_was(ranks, scenario):
    run, _ = others_are_told(ranks, stand_still_for_too_long, scenario, env=SOON)
    own = run.outcomes[1]
    assert isinstance(own, Finished), run.summary()
    told, refused = own.value
    assert told is not None, "it noticed nothing"
    assert told.is_a(ranks.subject.PeerFailed), told
    assert "stopped answering" not in told.text, told
    assert "rank 0" not in told.text, told
    assert refused is not None, "it goes on without those who have gone on without it"
    assert refused.is_a(RuntimeError), refused
    assert "given up" in refused.text, refused


def compute_without_a_pause(seconds):
    """Calls that hand the interpreter to no other thread, until one has lasted for so long."""
    numbers, lasted_s = 2_000_000, 0.0
    while lasted_s < seconds:
        begun = time.monotonic()
        sum(itertools.repeat(1, numbers))
        lasted_s = time.monotonic() - begun
        numbers = int(1.2 * numbers * max(1.0, seconds / lasted_s))


def compute_beside_the_program(seconds):
    """The same in another thread, for which the program waits."""
    thread = threading.Thread(target=compute_without_a_pause, args=(seconds,))
    thread.start()
    thread.join()


def wait_as_for_a_disk(seconds):
    """In a call that the kernel does not let go on, and that lets no other thread go on: a process is to begin with a
    file that is not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(file := os.path.join(folder, "file"))
        with subprocess.Popen(["sh", "-c", f"sleep {seconds}; echo > {file}"]):
            opening = [(os.POSIX_SPAWN_OPEN, 0, file, os.O_RDONLY, 0)]
            os.waitpid(os.posix_spawnp("true", ["true"], os.environ, file_actions=opening), 0)


def keep_the_interpreter(ctx, work):
    ensure_one_machine(ctx, "whether a process that says nothing is at work is seen on its own machine only")
    model = ddp(ctx, models.scalar())
    loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
    if ctx.rank == 1:
        time.sleep(MEETS_S)
        work(COMPUTES_S)
    loss.backward()
    return gradient(model.module.weight)


@check(
    "JOIN-057", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={"computes": compute_beside_the_program, "waits for a disk": wait_as_for_a_disk},
)  # fmt: skip
def test_a_rank_that_computes_without_a_pause_is_late_and_not_lost(ranks, scenario):
    run = ranks.run(keep_the_interpreter, scenario, env=SOON, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes):
        assert isinstance(end, Finished), run.summary()
        assert [end.value] == scalar_means((1,) * ranks.world), f"rank {rank}"


# -- JOIN-023: children that end inside a context


def fork_a_child_that_exits(ctx):
    """Rank 1 forks a child inside a context, as to save something, which ends there."""
    model, own = ddp(ctx, models.scalar()), os.getpid()
    try:
        with ctx.subject.Join([model]):
            for iteration in range(4):
                model.zero_grad()
                model(models.divisible_scalar(ctx.rank, iteration)).sum().backward()
                if ctx.rank == 1 and iteration == 1:
                    child = os.fork()
                    if not child:
                        sys.exit()
                    os.waitpid(child, 0)
                    time.sleep(MEETS_S)  # the others are waiting
    finally:
        if os.getpid() != own:
            os._exit(0)
    return gradient(model.module.weight)


@check("JOIN-023", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S)
def test_a_child_that_ends_inside_a_context_is_no_rank_that_leaves_it(ranks):
    [*_, last] = scalar_means((4,) * ranks.world)
    assert ranks(fork_a_child_that_exits) == [last] * ranks.world


# -- DDP-049: Ctrl-C and other signals


def interrupted_by(error):
    """A handler of a signal that raises this."""

    def interrupt(*_):
        raise error

    return interrupt


def to_reduce(ctx, group, hook=None):
    model = ddp(ctx, models.scalar(), process_group=group)
    if hook is not None:
        model.register_comm_hook(group, hook)
    loss = model(models.divisible_scalar(ctx.rank, 0)).sum()
    return lambda: (loss.backward(), model)  # which has to live until then


def to_wait_for_a_hook(ctx, group):
    return to_reduce(ctx, group, summing)


def to_build_a_model(ctx, group):
    return lambda: ddp(ctx, models.scalar(), process_group=group)


def interrupt_a_wait(ctx, begin, error):
    """Rank 0 is interrupted while it waits for the others, and takes its groups down; whether it was."""
    wait = begin(ctx, dist.new_group())
    if ctx.rank != 0:
        ctx.store.wait(["done"])
        return True
    before = signal.signal(signal.SIGINT, interrupted_by(error))
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    interrupted = False
    try:
        wait()
    except error:
        interrupted = True
    signal.signal(signal.SIGINT, before)
    del wait
    gc.collect()
    dist.destroy_process_group()  # the others have all they need to wait for ever
    ctx.store.set("done", "")
    return interrupted


@check(
    "DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={
        f"{begin.__name__}, by {error.__name__}": (begin, error)
        for begin in (to_reduce, to_wait_for_a_hook, to_build_a_model)
        for error in (KeyboardInterrupt, BadBatch)
    },
)  # fmt: skip
def test_an_interrupted_wait_ends_and_so_does_the_program(ranks, scenario):
    assert ranks.subject.PeerFailed
    run = ranks.run(interrupt_a_wait, *scenario, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes):
        assert isinstance(end, Finished), run.summary()
        assert end.value, f"rank {rank} was not interrupted"


def fail_of_itself(ctx, hooked, inside):
    """Rank 0 fails while the others compute, behind what it has begun and they have not, and takes its groups down.
    Then they do; whether all could."""
    model = ddp(ctx, models.chain(2), bucket_cap_mb=1e-5, process_group=dist.new_group())
    if hooked:
        model.register_comm_hook(model.process_group, ctx.subject.default_hooks.allreduce_hook)
    with contextlib.suppress(BadBatch), ctx.subject.Join([model]) if inside else contextlib.nullcontext():
        for iteration in range(3):  # the buckets are settled after two
            if ctx.rank != 0 and iteration == 2:
                ctx.store.wait(["done"])
                raise BadBatch
            loss = model(models.divisible(ctx.rank, iteration)).sum()
            if ctx.rank == 0 and iteration == 2:
                if inside:
                    raise BadBatch
                model.module[0].weight.register_hook(interrupted_by(BadBatch))
            loss.backward()
    del model, loss
    gc.collect()
    dist.destroy_process_group()
    others = [f"rank {rank} is done" for rank in range(1, ctx.world)]
    if ctx.rank != 0:
        ctx.store.set(others[ctx.rank - 1], "")
    else:
        ctx.store.set("done", "")
        ctx.store.wait(others)
        time.sleep(MEETS_S)  # what it had begun fails now
    return True


@check(
    "DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False, deadline_s=DEADLINE_S,
    scenarios={"in a backward": (False, False), "in one with a hook": (True, False), "in a context": (False, True)},
)  # fmt: skip
def test_a_rank_that_fails_ends_its_groups_though_others_have_not_begun_what_it_has(ranks, scenario):
    assert ranks.subject.PeerFailed
    run = ranks.run(fail_of_itself, *scenario, stall_s=DEADLINE_S)
    for rank, end in enumerate(run.outcomes):
        assert isinstance(end, Finished), run.summary()
        assert end.value, f"rank {rank} did not end"


def interrupt_waits_shortly_before_their_end(ctx):
    """Rank 0 waits for the others' gradients and gets a signal meanwhile. How often its handler has raised an error,
    and how often that has come out of the backward."""
    model = ddp(ctx, models.scalar())
    raised, came_out = [], 0

    def interrupt(*_):
        raised.append(None)
        raise BadBatch

    before = signal.signal(signal.SIGALRM, interrupt)
    for number in range(2 + INTERRUPTIONS):  # the buckets are settled after two
        loss = model(models.divisible_scalar(ctx.rank, number)).sum()
        dist.barrier()
        try:
            if ctx.rank != 0:
                time.sleep(LATE_S)
            elif number >= 2:
                signal.setitimer(signal.ITIMER_REAL, LATE_S - BEFORE_ITS_END_S)
            loss.backward()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except BadBatch:
            came_out += 1
    signal.signal(signal.SIGALRM, before)
    return len(raised), came_out


@check("DDP-049", worlds=(2, 3), backends=("gloo",), beyond=False)
def test_what_a_signal_handler_raises_in_a_wait_comes_out(ranks):
    assert ranks.subject.PeerFailed  # no document says that a rank may go on behind a backward that it alone has ended
    for raised, came_out in ranks(interrupt_waits_shortly_before_their_end):
        assert came_out == raised, f"{raised} errors of a handler, and {came_out} came out of the waits"
