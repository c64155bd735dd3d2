"""Ranks end in exactly one way each, within a deadline, and the next run does not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from conformance.ranks import Cluster, Died, Finished, ForkServerFailed, Hung, NotRunnable, Raised, RunFailed

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def cluster():
    with Cluster(deadline_s=20.0, stall_s=1.0) as made:
        yield made


@pytest.fixture(scope="module")
def pool():
    with Cluster(persistent=True, deadline_s=20.0, stall_s=1.0) as made:
        yield made


def run(cluster, function, *args, world=2, **options):
    return cluster.run(function, args, world=world, subject="torch", **options)


def sum_of_ranks(ctx):
    total = torch.tensor([float(ctx.rank)])
    dist.all_reduce(total)
    return total.item()


def assert_next_run_is_well(cluster, world=2):
    assert run(cluster, sum_of_ranks, world=world).values() == [sum(range(world))] * world


# --- how ranks end


@pytest.mark.parametrize("world", [1, 2, 4])
def test_values_come_in_rank_order(cluster, world):
    assert_next_run_is_well(cluster, world)


def raise_on_one(ctx, culprit):
    if ctx.rank == culprit:
        raise KeyError("lost")
    return "well"


def test_one_rank_that_raises_leaves_the_others_finished(cluster):
    ends = run(cluster, raise_on_one, 1, world=3).outcomes
    assert [type(end) for end in ends] == [Finished, Raised, Finished]
    assert ends[1].error.is_a(KeyError)
    assert ends[1].error.is_a(LookupError)
    assert "raise_on_one" in ends[1].traceback
    assert not ends[1].unsupported
    assert_next_run_is_well(cluster)


def raise_while_others_wait(ctx):
    if ctx.rank == 0:
        raise ValueError("mine")
    sum_of_ranks(ctx)


def test_a_rank_that_raised_holds_its_sockets_so_its_peers_are_seen_to_hang(cluster):
    ends = run(cluster, raise_while_others_wait).outcomes
    assert isinstance(ends[0], Raised)
    assert isinstance(ends[1], Hung)
    assert "sum_of_ranks" in ends[1].stacks
    assert_next_run_is_well(cluster)


def wait_in_different_collectives(ctx):
    sum_of_ranks(ctx)
    if ctx.rank == 0:
        sum_of_ranks(ctx)
    else:
        dist.recv(torch.zeros(1), src=0)


def test_a_deadlock_is_reported_with_stacks_and_a_witness_well_before_the_deadline(cluster):
    seen = run(cluster, wait_in_different_collectives, trace=True, deadline_s=1000.0)
    assert seen.seconds < 1000
    assert all(isinstance(end, Hung) for end in seen.outcomes)
    assert all("wait_in_different_collectives" in end.stacks for end in seen.outcomes)
    assert not any("_listen_to_driver" in end.stacks for end in seen.outcomes)
    assert seen.witness == (
        "rank 1 started 1 collective on group default and then waited elsewhere, in recv float32 (1,) from 0 on group "
        "default; rank 0 waits in its 2nd: all_reduce SUM float32 (1,)."
    )
    with pytest.raises(RunFailed, match="rank 0 hung"):
        seen.values()
    assert_next_run_is_well(cluster)


def test_a_hang_without_a_trace_says_so(cluster):
    assert "trace=True" in run(cluster, wait_in_different_collectives).witness


def spin(ctx):
    while True:
        pass


def test_a_busy_loop_ends_at_the_deadline(cluster):
    seen = run(cluster, spin, world=1, deadline_s=2.0)
    assert seen.seconds >= 2.0
    assert "spin" in seen.outcomes[0].stacks
    assert_next_run_is_well(cluster)


def sleep(ctx, seconds):
    time.sleep(seconds)
    return "awake"


def test_a_sleep_shorter_than_the_stall_is_no_hang(cluster):
    assert run(cluster, sleep, 1.5, stall_s=3.0).values() == ["awake", "awake"]


def sleep_often(ctx):
    for _ in range(8):
        time.sleep(0.3)
        ctx.note_progress()
    return "awake"


def test_who_says_that_it_gets_further_is_no_hang(cluster):
    assert run(cluster, sleep_often, stall_s=1.0).values() == ["awake", "awake"]
    assert isinstance(run(cluster, sleep, 15.0, stall_s=1.0).outcomes[0], Hung)


def sleep_while_a_grandchild_works(ctx):
    code = "import time\nend = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    return "worked"


def test_a_rank_whose_grandchild_works_is_not_silent(cluster):
    assert run(cluster, sleep_while_a_grandchild_works, world=1).values() == ["worked"]


def stop_oneself(ctx):
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_process_hangs_without_stacks(cluster):
    seen = run(cluster, stop_oneself, world=1)
    assert isinstance(seen.outcomes[0], Hung)
    assert "did not answer" in seen.outcomes[0].stacks
    assert_next_run_is_well(cluster)


def end_abruptly(ctx, how):
    ctx.meet("started")  # a rank that still connects to one that is gone has another story to tell
    if ctx.rank == 1:
        print("famous last words", file=sys.stderr)
        if how == "exit":
            sys.exit(3)
        os.kill(os.getpid(), how)
        time.sleep(60)
    return "well"


@pytest.mark.parametrize(("how", "status"), [("exit", 3), (signal.SIGKILL, -9), (signal.SIGSEGV, -11)])
def test_a_rank_that_dies_is_reported_with_its_status_and_last_words(cluster, how, status):
    ends = run(cluster, end_abruptly, how).outcomes
    assert isinstance(ends[0], Finished)
    assert isinstance(ends[1], Died)
    assert ends[1].exit_code == status
    assert "famous last words" in ends[1].last_words
    if how == signal.SIGSEGV:
        assert "end_abruptly" in ends[1].last_words  # where it was
    assert_next_run_is_well(cluster)


def return_a_lock(ctx):
    return threading.Lock()


class Awkward(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.lock = threading.Lock()

    def __str__(self):
        raise RuntimeError("no text for you")


def raise_awkwardly(ctx):
    raise Awkward(1, 2)


def test_results_and_errors_that_cannot_be_sent_are_reported_as_raised(cluster):
    (end,) = run(cluster, return_a_lock, world=1).outcomes
    assert isinstance(end, Raised)
    assert "a lock" in end.error.text
    assert "plain data" in end.error.text
    (end,) = run(cluster, raise_awkwardly, world=1).outcomes
    assert end.error.is_a(Awkward)


def test_a_function_that_cannot_be_sent_is_refused_before_anything_starts(cluster):
    with pytest.raises(TypeError, match="module level"):
        run(cluster, lambda ctx: None)


def return_much(ctx):
    return torch.full((5_000_000,), float(ctx.rank))


def test_large_results_come_home(cluster):
    assert [value[-1].item() for value in run(cluster, return_much).values()] == [0.0, 1.0]


# --- what a run may ask for


def surroundings(ctx):
    threads = torch.get_num_threads()
    return os.environ.get("COLOUR"), os.environ["OMP_NUM_THREADS"], threads, dist.is_initialized(), os.getcwd()


def test_a_run_has_its_own_environment_and_may_do_without_a_group(cluster):
    here = os.getcwd()
    assert run(cluster, surroundings, env={"COLOUR": "red"}, world=1).values() == [("red", "1", 1, True, here)]
    assert run(cluster, surroundings, init=False, world=1).values() == [(None, "1", 1, False, here)]


def debug_level(ctx):
    return dist.get_debug_level().name


def test_the_environment_is_there_before_torch_distributed_reads_it(cluster):
    env = {"TORCH_DISTRIBUTED_DEBUG": "INFO"}
    assert run(cluster, debug_level, world=1, env=env).values() == ["INFO"]
    assert run(cluster, debug_level, world=1).values() == ["OFF"]


def meet(ctx):
    ctx.meet("here")
    return len(ctx.trace())


def test_meetings_need_no_collective(cluster):
    assert run(cluster, meet, world=3, trace=True).values() == [0, 0, 0]


def wait_for_a_message(ctx):
    dist.recv(torch.zeros(1), src=1 - ctx.rank)


def test_a_short_group_timeout_can_be_asked_for(cluster):
    ends = run(cluster, wait_for_a_message, group_timeout_s=0.5, stall_s=5.0).outcomes
    assert any(isinstance(end, Raised) for end in ends)


def test_what_this_machine_cannot_do_is_said_before_anything_starts():
    with Cluster("no_such_package.module:mine") as wanting, pytest.raises(NotRunnable, match="cannot be imported"):
        run(wanting, sum_of_ranks)
    with Cluster("no_such_backend") as wanting, pytest.raises(NotRunnable, match="not registered"):
        run(wanting, sum_of_ranks)
    with Cluster("nccl") as wanting, pytest.raises(NotRunnable, match="nccl"):
        run(wanting, sum_of_ranks, world=torch.cuda.device_count() + 1)


# --- persistent ranks


def leave_traces(ctx):
    first = torch.rand(1).item()
    os.environ["TRACE"] = "left"
    os.chdir("/")
    sys.path.append("/nowhere")
    torch.set_default_dtype(torch.float64)
    return os.getpid(), first


def find_traces(ctx):
    return "TRACE" in os.environ, os.getcwd() == "/", "/nowhere" in sys.path, torch.get_default_dtype()


def pid(ctx):
    return os.getpid()


def test_persistent_ranks_stay_and_are_put_back_as_they_were(pool):
    first, again = run(pool, leave_traces).values(), run(pool, leave_traces).values()
    assert first == again  # the same processes, the same random numbers
    assert run(pool, find_traces).values() == [(False, False, False, torch.float32)] * 2
    assert run(pool, sum_of_ranks, trace=True).traces()[0]
    assert run(pool, sum_of_ranks).traces() == [(), ()]
    assert [type(end) for end in run(pool, raise_on_one, 1).outcomes] == [Finished, Raised]
    survivors = run(pool, pid).values()
    os.kill(survivors[0], signal.SIGKILL)  # while it waits for work
    assert_gone(survivors[:1])
    assert_next_run_is_well(pool)
    assert not set(survivors) & {number for number, _ in first}  # replaced after the failure
    assert_next_run_is_well(pool)


# --- nothing is left behind


def leave_grandchildren(ctx, note):
    plain = subprocess.Popen(["sleep", "300"])
    escaped = subprocess.Popen(["sleep", "300"], start_new_session=True)
    Path(f"{note}.{ctx.rank}").write_text(f"{os.getpid()} {plain.pid} {escaped.pid}")
    if ctx.rank == 0:
        return
    time.sleep(300)


def pids_noted(note, world):
    return [int(number) for rank in range(world) for number in Path(f"{note}.{rank}").read_text().split()]


def assert_gone(pids):
    deadline = time.monotonic() + 60
    while left := [number for number in pids if Path(f"/proc/{number}").exists() and not is_zombie(number)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.05)


def is_zombie(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_grandchildren_of_finished_and_of_hung_ranks_are_ended(cluster, tmp_path):
    ends = run(cluster, leave_grandchildren, tmp_path / "pids").outcomes
    assert [type(end) for end in ends] == [Finished, Hung]
    assert_gone(pids_noted(tmp_path / "pids", 2))
    assert_next_run_is_well(cluster)


def test_an_interrupted_run_leaves_no_rank_and_the_next_is_well(cluster, tmp_path):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.7)
        with pytest.raises(KeyboardInterrupt):
            run(cluster, leave_grandchildren, tmp_path / "pids", stall_s=100.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    written = [path for path in tmp_path.glob("pids.*") if path.read_text()]
    assert_gone([int(number) for path in written for number in path.read_text().split()])
    assert_next_run_is_well(cluster)


DRIVER = """
import sys
from conformance.ranks import Cluster
from {module} import leave_grandchildren
cluster = Cluster(stall_s=100.0, deadline_s=100.0)
print(cluster.run(leave_grandchildren, (sys.argv[1],), world=2, subject="torch"))
"""


def started_driver(note):
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    code = DRIVER.format(module=Path(__file__).stem)
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(note)], env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not all(Path(f"{note}.{rank}").exists() and pids_noted(note, 1) for rank in range(2)):
        assert driver.poll() is None, driver.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.2)
    return driver


def descendants(root):
    """Every process below ``root``, by following parents."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_killed_or_interrupted_leaves_no_process(tmp_path, number):
    driver = started_driver(tmp_path / "pids")
    below = descendants(driver.pid)
    assert set(pids_noted(tmp_path / "pids", 2)) <= below | {0}
    os.killpg(driver.pid, number)
    assert driver.wait(20) != 0
    assert_gone(below)


def test_a_killed_fork_server_is_replaced_and_closing_leaves_neither_process_nor_file(pool):
    assert_next_run_is_well(pool)
    first = pool._started
    threading.Timer(0.5, os.kill, (first._process.pid, signal.SIGKILL)).start()
    with pytest.raises(ForkServerFailed, match="ended by itself"):
        run(pool, sleep, 60)
    assert_next_run_is_well(pool)
    second = pool._started
    below = descendants(second._process.pid)
    assert len(below) >= 3  # two ranks and the keeper of the store
    pool.close()
    pool.close()
    assert_gone(below)
    assert not first.folder.exists()
    assert not second.folder.exists()
