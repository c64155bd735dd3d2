"""Waiting for a collective: to its end, cut short by a watch, and what is said when it fails."""

import contextlib
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from impl.comm import pending as room
from impl.comm import ranks as teams
from impl.comm import store, streams
from impl.comm.pending import Pending, until_next_look
from impl.comm.ranks import Team
from impl.comm.tally import Tally
from impl.errors import PeerFailed


class Work:
    """A collective that takes some time; its timed wait behaves as Gloo's does."""

    def __init__(self, lasts_s=0.0, fails=None):
        self.end = time.monotonic() + lasts_s
        self.fails = fails
        self.waits = []

    def is_completed(self):
        return time.monotonic() >= self.end

    def wait(self, timeout=None):
        self.waits.append(timeout)
        left = self.end - time.monotonic()
        if timeout is not None and left > timeout.total_seconds():
            time.sleep(timeout.total_seconds())
            raise RuntimeError("Operation timed out!")
        time.sleep(max(left, 0))
        if self.fails:
            raise self.fails
        return True


class Watch:
    def __init__(self, raises_at=None, ends=None, at=0):
        self.looks = 0
        self.raises_at = raises_at
        self.ends, self.at = ends, at  # a collective that is over once it has been looked at so often

    def __call__(self, failure=None):
        self.looks += 1
        if self.ends is not None and self.looks >= self.at:
            self.ends.end = time.monotonic()
        if self.raises_at is not None and self.looks >= self.raises_at:
            raise PeerFailed("rank 1 is gone")


@pytest.fixture(params=["host", "accelerator"])
def either_place(request, monkeypatch):
    """Both ways to wait: in timed slices, and by asking again and again where a timed wait would abort."""
    if request.param == "accelerator":
        monkeypatch.setattr(streams, "is_accelerated", lambda _: True)
        monkeypatch.setattr(streams, "reading", lambda _: contextlib.nullcontext())


def team_of_one():
    """What a wait asks of its team, of one that nobody watches."""
    return SimpleNamespace(tally=Tally(), guard=None, size=1, blocks_host=False, abandon=lambda: None)


def in_flight(work):
    return Pending("a label", torch.tensor([1.0, 2.0]), work, team_of_one())


def test_a_wait_without_a_watch_is_the_backends_own():
    work = Work()
    assert in_flight(work).wait().tolist() == [1, 2]
    assert work.waits == [timedelta(0)]


@pytest.mark.usefixtures("either_place")
def test_a_watch_is_not_called_by_a_collective_that_is_over():
    watch = Watch(raises_at=1)
    assert in_flight(Work()).read(watch) == [1, 2]
    assert watch.looks == 0


@pytest.mark.usefixtures("either_place")
def test_a_slow_collective_is_waited_for_to_its_end_and_watched_meanwhile(monkeypatch):
    monkeypatch.setattr(room, "_WATCH_EVERY_S", 0.01)
    work = Work(lasts_s=600)
    watch = Watch(ends=work, at=3)
    assert in_flight(work).read(watch) == [1, 2]
    assert watch.looks == 3


@pytest.mark.usefixtures("either_place")
def test_a_watch_that_raises_cuts_the_wait_short_and_the_label_is_told(monkeypatch):
    monkeypatch.setattr(room, "_WATCH_EVERY_S", 0.01)
    work = Work(lasts_s=600)
    with pytest.raises(PeerFailed) as caught:
        in_flight(work).read(Watch(raises_at=2))
    assert not work.is_completed()
    assert "a label" in str(caught.value)


@pytest.mark.parametrize("lasts_s", [0, 0.12])
def test_a_collective_that_fails_raises_its_own_error_with_the_label(lasts_s):
    failure = RuntimeError("connection reset")
    with pytest.raises(RuntimeError, match="connection reset") as caught:
        in_flight(Work(lasts_s, failure)).wait(Watch())
    assert caught.value is failure
    assert "a label" in failure.__notes__[0]


def test_a_failed_peer_explains_the_lost_connection_to_it():
    failure = RuntimeError("connection reset")
    with pytest.raises(PeerFailed) as caught:
        in_flight(Work(0, failure)).wait(Watch(raises_at=1))
    assert caught.value.__cause__ is failure


def test_a_watch_is_told_of_the_failure_and_not_of_a_mistake_in_a_call():
    for failure, told in ((RuntimeError("connection reset"), True), (TypeError("no such argument"), False)):
        heard = []
        with pytest.raises(type(failure)):
            in_flight(Work(0, failure)).wait(lambda *failures, heard=heard: heard.append(list(failures)))
        assert heard == [[failure] if told else []]


def test_looks_become_rarer_in_a_long_wait_and_among_many_ranks_but_not_rarer_than_one_a_second():
    assert [until_next_look(waited, 2) for waited in (0, 0.4, 2, 5, 1000)] == [0.05, 0.05, 0.2, 0.5, 1.0]
    assert [until_next_look(0, ranks) for ranks in (1, 100, 1000, 100_000)] == [0.05, 0.05, 0.5, 1.0]


def test_a_thousand_ranks_that_wait_ask_the_store_two_thousand_times_a_second_at_most():
    for ranks in (2, 100, 1000):
        assert ranks / until_next_look(0, ranks) <= 2000


class Recorded(Work):
    """Never ends by itself; its waits take no time."""

    def wait(self, timeout=None):
        self.waits.append(timeout.total_seconds())
        Recorded.now += timeout.total_seconds()
        raise RuntimeError("Operation timed out!")


def test_the_slices_of_one_wait_grow(monkeypatch):
    Recorded.now = 0.0
    work = Recorded(lasts_s=600)
    monkeypatch.setattr(room.time, "monotonic", lambda: Recorded.now)
    with pytest.raises(PeerFailed):
        in_flight(work).wait(Watch(raises_at=60))
    assert work.waits[:2] == [0.05, 0.05]
    assert work.waits == sorted(work.waits)
    assert work.waits[-1] == 1.0
    assert len(work.waits) == 60


class JustInTime(Work):
    """Ends right after a timed wait has given up, before anybody can look."""

    def is_completed(self):
        return bool(self.waits)

    def wait(self, timeout=None):
        self.waits.append(timeout)
        if timeout:
            time.sleep(timeout.total_seconds())
            raise RuntimeError("Operation timed out!")
        if self.fails:
            raise self.fails
        return True


def test_a_collective_that_ends_just_after_a_slice_of_waiting_has_not_failed():
    watch = Watch(raises_at=1)
    assert in_flight(JustInTime()).wait(watch).tolist() == [1, 2]
    failure = RuntimeError("connection reset")
    with pytest.raises(RuntimeError, match="connection reset"):
        in_flight(JustInTime(fails=failure)).wait(Watch())


class Unfit(Work):
    """A backend that cannot wait for a time."""

    def is_completed(self):
        return False

    def wait(self, timeout=None):
        if timeout is not None:
            raise TypeError("no timeout here")
        return super().wait()


def test_a_backend_without_timed_waits_says_so_instead_of_looping_forever():
    with pytest.raises(TypeError, match="no timeout here"):
        in_flight(Unfit(lasts_s=30)).wait(Watch())


def test_on_the_cpu_there_are_no_streams():
    assert not streams.is_accelerated(torch.device("cpu"))


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="no accelerator here")
def test_on_an_accelerator_the_reading_stream_is_one_and_the_same():
    device = torch.device(torch.accelerator.current_accelerator().type, 0)
    assert streams.is_accelerated(device)
    with streams.reading(device) as _:
        first = torch.accelerator.current_stream(device)
    with streams.reading(device) as _:
        assert torch.accelerator.current_stream(device) == first
    assert torch.accelerator.current_stream(device) != first


class Stranger(dist.ProcessGroup):
    """A group that torch.distributed was never told of."""


def test_a_group_has_a_store_if_torch_knows_that_its_ranks_share_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=5))
    try:
        assert store.shared_by(Stranger(0, 1)) is None
        for group in (dist.group.WORLD, dist.new_group()):
            found = store.shared_by(group)
            assert found is not None
            assert found.add(f"n of {group.group_name}", 2) == 2
            found.set("key", "value")
            assert found.check(["key"])
            assert found.get("key") == b"value"
            assert not found.check(["other key"])
    finally:
        dist.destroy_process_group()
    assert store.shared_by(group) is None


class OfAUser(dist.Work):
    """A Work of a class in Python: it wants a timeout, and its result may lie in the future alone."""

    def __init__(self, result=None):
        super().__init__()
        self.result, self.timeouts = result, []

    def wait(self, timeout):
        self.timeouts.append(timeout)
        return True

    def get_future(self):
        if self.result is None:
            return super().get_future()
        future = torch.futures.Future()
        future.set_result(self.result)
        return future


def of_a_user(buffer, result=None):
    work = OfAUser(result)
    return Pending("a label", buffer, work, team_of_one(), result_in_future=True), work


@pytest.mark.parametrize("watch", [None, Watch()])
def test_a_work_that_demands_a_timeout_is_given_one(watch):
    pending, work = of_a_user(torch.ones(2))
    assert pending.wait(watch).tolist() == [1, 1]
    assert work.timeouts == [timedelta(0) if watch is None else timedelta(seconds=0.05)]


@pytest.mark.parametrize("watch", [None, Watch()])
@pytest.mark.parametrize("listed", [False, True])
def test_a_result_that_is_in_the_future_alone_comes_into_the_buffer(watch, listed):
    result = torch.tensor([[3.0], [4.0]])
    pending, _ = of_a_user(torch.ones(2), [result] if listed else result)
    assert pending.read(watch) == [3, 4]
    assert pending.buffer.tolist() == [3, 4]


def test_a_complex_result_may_be_shown_as_real_numbers():
    pending, _ = of_a_user(torch.zeros(1, dtype=torch.complex64), [torch.tensor([[1.0, 2.0]])])
    assert pending.wait().tolist() == [1 + 2j]


def test_a_future_that_holds_something_else_is_refused_and_one_that_holds_nothing_is_not():
    with pytest.raises(RuntimeError, match=r"3 elements where 2 were to be reduced \(a label\)"):
        of_a_user(torch.ones(2), [torch.ones(3)])[0].wait()
    assert of_a_user(torch.ones(2), [])[0].wait().tolist() == [1, 1]


def interrupted(*_):
    raise KeyboardInterrupt


class PassesOn(dist.ProcessGroup):
    """A group written in Python, which may have one of Gloo's inside."""

    def allreduce(self, *_):
        raise AssertionError


@pytest.mark.parametrize("in_python", [False, True])
def test_ctrl_c_during_a_wait_gives_the_group_up(in_python, monkeypatch):
    """Gloo's destructor would wait for the collective when the program ends. (Reductions do so in their queue.)"""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        team, given_up = Team.of(PassesOn(0, 1) if in_python else None), []
        monkeypatch.setattr(teams, "keep_for_ever", given_up.append)
        endless = Work(lasts_s=60)
        endless.wait = interrupted
        with pytest.raises(KeyboardInterrupt):
            Pending("bucket 0", torch.ones(1), endless, team).wait(Watch())
        assert given_up == [team.group]
    finally:
        dist.destroy_process_group()
