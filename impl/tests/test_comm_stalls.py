"""Ranks that wait for each other are told so, all of them; slow ones and slow networks are left in peace."""

import os
import socket
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from impl.comm import collectives, guard
from impl.comm.ranks import GroupRank, Team
from impl.comm.stalls import Wait, Waits, describe, mark, moved_bytes
from impl.comm.store import limit_silence
from impl.ddp import reducer
from impl.errors import CollectivesDiffer
from impl.tests.comm_hook_ranks import run_on_ranks

NAMES = {0: "rank 0", 1: "rank 1", 2: "rank 2"}


def wait(rank, moved=10, whose="g", begun=1.0, place="bucket 0"):
    return Wait(rank, whose, begun, place, moved)


def known(*waits):
    """(wait, look, when) each."""
    made = Waits()
    for each in waits:
        made.add(*each)
    return made


def test_a_stall_is_all_ranks_waiting_for_long_while_nothing_moves():
    waits = known(*((wait(rank), look, float(look)) for look in (1, 2, 3) for rank in range(3)))
    assert waits.stalled("g", range(3), 2.0, now=3.0) == [wait(0), wait(1), wait(2)]
    assert waits.stalled("g", range(3), 2.5, now=3.0) == []


def test_a_rank_that_is_not_heard_to_wait_computes():
    assert known((wait(0), 1, 0.0)).stalled("g", range(2), 1.0, now=1.5) == []


def test_one_that_has_said_it_long_ago_may_wait_no_longer():
    assert known((wait(0), 1, 0.0), (wait(1), 1, 0.0)).stalled("g", range(2), 1.0, now=20.0) == []


def test_one_that_has_not_said_so_since_the_last_one_began_to_wait_may_wait_no_longer():
    waits = known((wait(1), 1, 0.0), (wait(0), 1, 0.5), (wait(0), 2, 1.0))
    assert waits.stalled("g", range(2), 0.5, now=1.0) == []
    waits.add(wait(1), 2, 1.1)
    assert waits.stalled("g", range(2), 0.5, now=1.2)


@pytest.mark.parametrize("other", [wait(1, moved=11), wait(1, begun=2.0), wait(1, place="bucket 1")])
def test_bytes_that_move_and_waits_that_end_begin_the_time_anew(other):
    waits = known((wait(0), 1, 0.0), (wait(1), 1, 0.0), (wait(0), 2, 1.5), (other, 2, 1.5))
    assert waits.stalled("g", range(2), 1.0, now=1.6) == []


def test_waits_on_groups_of_other_ranks_are_no_stall():
    assert known((wait(0), 1, 0.0), (wait(1, whose="h"), 1, 0.0)).stalled("g", range(2), 1.0, now=1.5) == []


def test_a_stall_that_another_has_noticed_is_one_here_and_once_only():
    waits = known((wait(0), 1, 0.0), (wait(1), 1, 0.0))
    assert waits.stalled("g", range(2), 1.0, now=0.5) == []
    assert waits.declare("g", mark([wait(0), wait(1)]))
    assert not waits.declare("g", mark([wait(0), wait(1)]))
    assert waits.stalled("g", range(2), 1.0, now=0.5) == [wait(0), wait(1)]
    assert waits.stalled("g", range(2), 1.0, now=0.5) == []


def test_a_stall_that_is_told_late_does_not_meet_the_waits_after_it():
    waits = known((wait(0), 1, 0.0), (wait(1), 1, 0.0))
    assert waits.stalled("g", range(2), 1.0, now=1.5)
    assert not waits.declare("g", mark([wait(0), wait(1)]))
    waits.add(wait(1, begun=7.0), 2, 2.0)
    assert not waits.declare("g", mark([wait(0), wait(1, begun=6.0)]))


def test_what_is_passed_on_twice_is_new_once():
    waits = Waits()
    assert waits.add(wait(0), 1, 0.0)
    assert not waits.add(wait(0), 1, 0.5)
    assert waits.add(wait(0), 2, 1.0)


def test_ranks_of_one_view_are_named_together():
    views = [wait(0), wait(1, place="bucket 1"), wait(2)]
    assert describe(views, NAMES) == "rank 0, rank 2: bucket 0; rank 1: bucket 1"


def test_bytes_are_counted_on_connections_and_not_on_those_that_do_not_count():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            before = moved_bytes((), None)
            if before is None:
                pytest.skip("the system does not tell")
            ours.sendall(b"1234")
            theirs.recv(4)
            assert moved_bytes((), None) - before >= 4
            assert moved_bytes((), server.getsockname()[1]) <= before
            assert moved_bytes((ours.fileno(), theirs.fileno()), None) <= before


def waiting_for_each_other(rank, world):
    """Each rank expects a message of the other."""
    os.environ[guard.DETECTION] = "1"
    team = Team.of(None)
    collectives.all_reduce(team, torch.zeros(1), "the first sum").wait()
    pending = collectives.broadcast(team, torch.zeros(4), GroupRank(1 - rank), f"the message of rank {1 - rank}")
    with pytest.raises(CollectivesDiffer) as raised:
        pending.wait()
    return str(raised.value)


def on_two_groups(rank, world):
    """Each rank has begun with another group of the same ranks."""
    os.environ[guard.DETECTION] = "1"
    teams = [Team.of(None), Team.of(dist.new_group())]
    for team in teams:
        collectives.all_reduce(team, torch.zeros(1), "the first sum").wait()
    with pytest.raises(CollectivesDiffer) as raised:
        collectives.all_reduce(teams[rank], torch.zeros(4), f"the sum on group {rank}").wait()
    return str(raised.value)


def one_late(rank, world):
    os.environ[guard.DETECTION] = "1"
    if rank == 0:
        time.sleep(3)
    return collectives.all_reduce(Team.of(None), torch.ones(1), "sum").wait().item()


def test_looking_at_connections_leaves_no_descriptor_open():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with socket.socketpair()[0], open(os.devnull):
        before = os.listdir("/proc/self/fd")
        for _ in range(3):
            limit_silence(store, 4.0)
            moved_bytes((), None)
        assert os.listdir("/proc/self/fd") == before


@pytest.mark.slow
def test_ranks_that_wait_for_each_other_are_all_told_for_what():
    for text in run_on_ranks(waiting_for_each_other, 2):
        assert "rank 0: the message of rank 1; rank 1: the message of rank 0" in text


@pytest.mark.slow
def test_ranks_that_wait_on_two_groups_of_theirs_are_told_so():
    for text in run_on_ranks(on_two_groups, 2):
        assert "rank 0: the sum on group 0; rank 1: the sum on group 1" in text


@pytest.mark.slow
def test_a_late_rank_is_waited_for():
    assert run_on_ranks(one_late, 2) == [2.0, 2.0]


class Meanwhile:
    """In place of a weak reference in a mapping: when it is asked, another thread has added an entry."""

    def __init__(self, add):
        self._add = add

    def __call__(self):
        self._add()


def test_a_group_that_another_thread_adds_while_one_looks_at_all_is_no_error(monkeypatch):
    groups = [type("Group", (), {})() for _ in range(2)]
    monkeypatch.setattr(guard, "_guards", guards := weakref.WeakKeyDictionary({groups[0]: None}))
    guards.data[Meanwhile(lambda: guards.setdefault(groups[1]))] = None
    assert not guard.Guard._goes_on_elsewhere(SimpleNamespace(_members="", _tally=None))
    assert groups[1] in guards


def test_a_model_that_another_thread_makes_while_one_looks_at_all_is_no_error(monkeypatch):
    models = [type("Reducer", (), {})() for _ in range(2)]
    monkeypatch.setattr(reducer, "_reducers", made := weakref.WeakValueDictionary({0: models[0]}))
    made.data[1] = Meanwhile(lambda: made.setdefault(2, models[1]))
    assert reducer.all_reducers() == [models[0]]
    assert made[2] is models[1]
