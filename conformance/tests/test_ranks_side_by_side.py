"""Several clusters from one loaded process: each on its own, all gone together; and calls that lend their turns."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from conformance.engine.parallel import Ahead, Turns
from conformance.ranks import Cluster, ForkServerFailed

from .test_ranks import assert_gone, assert_next_run_is_well, descendants, leave_grandchildren, pids_noted, run

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def pair():
    with Cluster(deadline_s=20.0, stall_s=1.0) as first, Cluster(stall_s=1.0, base=first) as second:
        yield first, second


def at_once(*acts):
    """Call each on a thread of its own; what each returned."""
    found = [None] * len(acts)

    def keep(place, act):
        found[place] = act()

    threads = [threading.Thread(target=keep, args=each) for each in enumerate(acts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return found


def parent_of(ctx):
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_cluster_beside_another_loads_nothing_and_both_run_at_once(pair):
    first, second = pair
    parents = at_once(lambda: run(first, parent_of).values(), lambda: run(second, parent_of).values())
    fork_server = first._started._process.pid
    assert parents == [[os.getpid()] * 2, [fork_server] * 2]


def test_what_a_cluster_beside_leaves_ends_with_it_and_the_first_goes_on(pair, tmp_path):
    first, second = pair
    run(second, leave_grandchildren, tmp_path / "pids")
    assert_gone(pids_noted(tmp_path / "pids", 2))
    folder = second._started.folder
    below = descendants(first._started._process.pid)
    assert_next_run_is_well(first)
    second.close()
    assert not folder.exists()
    assert_gone(below - descendants(first._started._process.pid))
    assert_next_run_is_well(first)
    assert_next_run_is_well(second)  # anew


def work_then_wait(ctx, seconds):
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        continue
    time.sleep(seconds)


def test_a_run_whose_ranks_wait_says_so_and_takes_it_back_at_the_end(pair):
    told = []
    with Cluster(stall_s=100.0, base=pair[0], when_idle=told.append) as cluster:
        run(cluster, work_then_wait, 3.0).values()
    assert True in told
    assert told.index(False) < told.index(True)  # it worked first
    assert told[-1] is False


def test_a_fork_server_takes_those_beside_it_along_when_it_is_killed_or_closed(pair, tmp_path):
    first, second = pair
    assert_next_run_is_well(second)
    below = descendants(first._started._process.pid)
    threading.Timer(1.0, os.kill, (first._started._process.pid, signal.SIGKILL)).start()
    with pytest.raises(ForkServerFailed, match="ended by itself"):
        run(second, leave_grandchildren, tmp_path / "pids", stall_s=100.0)
    assert_gone(below)
    assert_next_run_is_well(second)
    below = descendants(first._started._process.pid)
    first.close()
    assert_gone(below)
    second.close()


# --- turns


def test_a_call_that_waits_lends_its_turn_and_goes_on_without_asking():
    turns, entered, ended = Turns(1), threading.Event(), threading.Event()
    order = []

    def waits():
        turns.lend(True)
        assert entered.wait(60)
        turns.lend(False)
        order.append("goes on")
        ended.set()

    def works():
        entered.set()
        assert ended.wait(60)
        order.append("works")

    ahead = Ahead(3, turns, {"waits": waits, "works": works, "last": lambda: order.append("last")})
    assert [ahead.ending(name).error for name in ("waits", "works", "last")] == [None] * 3
    assert order == ["goes on", "works", "last"]  # both others ended before there was a turn again


def test_without_lending_no_more_calls_work_than_there_are_turns():
    working, most = 0, 0
    lock = threading.Lock()

    def call():
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        time.sleep(0.01)
        with lock:
            working -= 1

    ahead = Ahead(6, Turns(2), {str(number): call for number in range(20)})
    assert all(ahead.ending(str(number)).error is None for number in range(20))
    assert most <= 2


def test_a_thread_takes_near_calls_of_its_kind_first_and_no_call_waits_for_far_ones():
    order: list[int] = []
    calls = {str(number): partial(order.append, number) for number in range(300)}
    kinds = {str(number): number % 2 for number in range(300) if number % 50 != 48}
    ahead = Ahead(1, Turns(1), calls, kinds)
    assert all(ahead.ending(key).error is None for key in calls)
    assert sorted(order) == list(range(300))
    assert order[:60] == [*range(0, 48, 2), *range(50, 98, 2), 100, *range(1, 23, 2)]
    assert max(number - place for place, number in enumerate(order)) <= 100


def test_a_thread_without_a_turn_lends_none():
    turns = Turns(0)
    turns.lend(True)
    entered = threading.Event()
    Ahead(1, turns, {"call": entered.set})
    assert not entered.wait(0.2)
