"""Which peers a failure is put down to: those that stopped by themselves, never those that fail because of them."""

import errno
import json
import os
import resource
import socket
import subprocess
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from impl.comm import guard, heartbeats, losses
from impl.comm import store as stores
from impl.comm.losses import GRACE_S, End, Loss, Losses
from impl.comm.processes import Process, Signs, has_moved
from impl.comm.ranks import Team
from impl.tests.comm_hook_ranks import run_on_ranks


def loss(rank, end=End.CLOSED, text=""):
    return Loss(rank, end, f"process {rank} on h", "bucket 1", 0, text)


def known(*ends, affected=()):
    made = Losses()
    for rank in affected:
        made.add_affected(rank, 0)
    for rank, end, at in ends:
        made.add(loss(rank, end), at)
    return made


def ranks(found):
    return [each.rank for each in found]


def test_silence_breaks_waits_off_at_once_and_a_closed_connection_after_a_grace():
    assert ranks(known((1, End.SILENT, 0.0)).interrupting(range(4), 0.0)) == [1]
    closed = known((1, End.CLOSED, 0.0))
    assert closed.interrupting(range(4), GRACE_S / 2) == []
    assert ranks(closed.interrupting(range(4), GRACE_S)) == [1]


def test_one_that_left_in_good_order_breaks_no_wait_off_but_explains_a_failure():
    left = known((1, End.LEFT, 0.0))
    assert left.interrupting(range(4), 1000.0) == []
    assert ranks(left.causes(range(4), 0.0)) == [1]


def test_one_that_left_in_good_order_is_missed_once_another_has_failed_for_want_of_it():
    left = known((1, End.LEFT, 0.0), affected=[2])
    assert left.interrupting(range(4), GRACE_S / 2) == []
    assert ranks(left.interrupting(range(4), GRACE_S)) == [1]
    assert left.interrupting((0, 1), GRACE_S) == []


def late(rank, _world, who):
    """Rank 0 comes late to answer a call, or rank 1 to its own greeting: whether the other is lost, and the calls."""
    name, calls = ("_accept", "_greet")[who], []
    right = getattr(heartbeats.Heartbeats, name)

    def slow(*args):
        calls.append(1)
        time.sleep(1.5 if len(calls) == 1 else 0.0)
        right(*args)

    if rank == who:
        setattr(heartbeats.Heartbeats, name, slow)
    beats = Team.of().guard._beats
    while beats.missing:
        time.sleep(0.01)
    time.sleep(2)
    return beats.losses.has(1 - rank), len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_who_is_late_to_answer_is_called_once_and_who_is_late_to_greet_has_called(who):
    calls = [(1, 0), (0, 1)][who]
    assert run_on_ranks(late, 2, who) == [(False, each) for each in calls]


def two_threads_begin(rank, _world):
    """How many beats this process has, and whether they have met the other rank."""
    groups, together = [dist.new_group(), dist.new_group()], threading.Barrier(2)

    def begin(group):
        together.wait()
        guard.guard_of(group)

    threads = [threading.Thread(target=begin, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begun = len(heartbeats._begun_here)
    met = waited_for(lambda: not any(beats.missing for beats in heartbeats._begun_here))
    dist.barrier()
    return begun, met


@pytest.mark.slow
def test_threads_that_come_to_their_first_groups_together_begin_once():
    assert run_on_ranks(two_threads_begin, 2) == [(1, True)] * 2


def test_losses_of_other_groups_do_not_matter():
    made = known((5, End.SILENT, 0.0))
    assert made.interrupting(range(4), 1.0) == []
    assert made.causes(range(4), 0.0) == []


def test_a_rank_that_is_only_affected_is_never_the_cause():
    made = known((1, End.CLOSED, 0.0), (2, End.CLOSED, 0.1), affected=[1])
    assert ranks(made.causes(range(4), 0.0)) == [2]


def test_those_that_are_lost_are_named_by_their_places_in_the_group(monkeypatch):
    monkeypatch.setattr(guard, "global_ranks_of", lambda group: [1, 2, 4])
    beats = SimpleNamespace(losses=known((2, End.CLOSED, 0.0), (3, End.CLOSED, 0.0)))
    group = type("Group", (), {"size": lambda self: 3})()  # one that can be referred to weakly
    assert guard.Guard(group, beats).lost() == {1}


def test_those_that_stop_together_are_named_together_and_later_ones_are_not():
    made = known((3, End.SILENT, 0.2), (2, End.SILENT, 0.0), (1, End.CLOSED, 5.0))
    assert ranks(made.interrupting(range(4), 6.0)) == [2, 3]


def test_one_that_raised_comes_before_one_that_left():
    assert ranks(known((1, End.LEFT, 0.0), (2, End.RAISED, 0.1)).causes(range(4), 0.0)) == [2]


def test_only_the_first_word_about_a_rank_counts():
    made = Losses()
    assert made.add(loss(1, End.RAISED, "KeyError: 3"), 0.0)
    assert not made.add(loss(1, End.CLOSED), 0.0)
    assert made.causes([1], 0.0)[0].end is End.RAISED


@pytest.mark.parametrize("end", End)
def test_a_loss_travels_as_it_is_and_is_told_by_name(end):
    before = loss(3, end, "KeyError: 3")
    assert Loss.from_json(before.as_json()) == before
    told = before.describe("rank 1 (global rank 3)", 5.0)
    assert "rank 1 (global rank 3)" in told
    assert "bucket 1" in told


@pytest.mark.parametrize("said", [{}, {"rank": "x"}, {**loss(1).as_json(), "end": "eaten"}])
def test_what_is_no_loss_is_refused(said):
    with pytest.raises((KeyError, ValueError, TypeError)):
        Loss.from_json(said)


def test_the_longest_text_of_a_loss_may_come_in_pieces():
    text = loss(1, End.RAISED, "\N{BEACH WITH UMBRELLA}" * 250 + "\N{PARTY POPPER}" * 250)
    line = json.dumps({"loss": text.as_json()}).encode()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        peer = heartbeats.Peer(ours, None)
        theirs.sendall(line[:-1])
        assert peer.lines() == []
        theirs.sendall(line[-1:] + b"\n")
        assert peer.lines() == [line]


def test_long_texts_are_cut():
    assert len(str(Loss.from_json(loss(1, text="x" * 10**6).as_json()).text)) < 1000


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13, 64, 1000])
def test_every_rank_is_a_neighbour_of_its_neighbours_and_of_few(size):
    around = [heartbeats.neighbours(rank, size) for rank in range(size)]
    assert all(rank in around[other] for rank in range(size) for other in around[rank])
    assert all(rank not in mine and len(mine) <= 2 * size.bit_length() for rank, mine in enumerate(around))
    if size <= 5:
        assert all(mine == set(range(size)) - {rank} for rank, mine in enumerate(around))


@pytest.mark.parametrize(("then", "now", "moved"), [
    (("S", 5.0), ("S", 6.0), True), (("S", 5.0), ("S", 5.2), True), (("S", 5.0), ("S", 5.0), False),
    (("S", 5.0), ("R", 5.0), True), (("S", 5.0), ("D", 5.0), True),
    (("S", 5.0), ("T", 9.0), False), (("S", 5.0), ("Z", 9.0), False), (("S", 5.0), ("X", 0.0), False),
    (("S", 5.0), ("S", 5.05), False),  # its threads have looked for the interpreter, and got it no more than it was
])  # fmt: skip
def test_a_process_that_computes_or_waits_for_a_processor_is_late_and_not_gone(then, now, moved):
    assert has_moved(Signs(*then, 7.0), Signs(*now, 9.5)) is moved


def test_a_process_sees_itself():
    own = Process.own()
    assert own.is_on_same_machine(own)
    assert own.signs().state == "R"
    assert losses.GRACE_S < 2


def live(store, sign):
    store.set("heartbeats/1", json.dumps(["192.0.2.1", 1, "far", "another machine", 7, sign]))


def not_met(store):
    """The beats of rank 0 of two, whose peer on another host has left its address, where nobody answers."""
    live(store, 0)
    return heartbeats.Heartbeats(0, 2, "127.0.0.1", store, 5.0, 5.0)


def look(beats, seconds):
    beats._rendezvous.ran(seconds)
    beats._call()


def test_a_rank_that_cannot_be_met_is_lost_when_its_signs_of_life_in_the_store_end():
    beats = not_met(store := dist.HashStore())
    for turn in range(12):
        live(store, turn)
        look(beats, 1.0)
    assert not beats.losses.has(1)
    for _ in range(4):
        look(beats, 1.0)
    assert not beats.losses.has(1)
    look(beats, 1.0)
    (loss,) = beats.losses.interrupting([0, 1], time.monotonic())
    assert (loss.rank, loss.end) == (1, losses.End.SILENT)


def test_a_peer_that_says_why_it_ends_just_before_its_process_is_seen_to_be_gone_has_said_so():
    class Leaving(dist.HashStore):
        def get(self, key):
            found = super().get(key)
            if key == "heartbeats/1":
                self.set(key, json.dumps({"loss": loss(1, End.RAISED, "BadBatch").as_json()}))
            return found

    store, own = Leaving(), Process.own()
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    store.set("heartbeats/1", json.dumps(["127.0.0.1", 1, own.host, own.machine, gone.pid, 1]))
    look(beats := heartbeats.Heartbeats(0, 2, "127.0.0.1", store, 5.0, 5.0), 0.0)
    assert [(each.end, each.text) for each in beats.losses.causes([0, 1], 0.0)] == [(End.RAISED, "BadBatch")]


@pytest.mark.parametrize("seen", [True, False])
def test_the_end_of_a_peer_that_was_seen_and_never_met_is_awaited_for_as_long_as_silence_takes(monkeypatch, seen):
    monkeypatch.setattr(guard, "_CAUSE_WITHIN_S", 0.1)
    beats = not_met(dist.HashStore()) if seen else heartbeats.Heartbeats(0, 2, "127.0.0.1", dist.HashStore(), 5.0, 5.0)
    look(beats, 0.0)
    found = guard.Guard.__new__(guard.Guard)
    found._beats, found._name_of = beats, {0: "rank 0", 1: "rank 1"}
    later = threading.Timer(0.5, lambda: beats.losses.add(loss(1, End.SILENT), time.monotonic()))
    later.start()
    assert [each.rank for each in found.causes()] == ([1] if seen else [])
    later.join()


def test_a_store_that_fails_before_all_are_met_cuts_this_rank_off():
    class Gone(dist.HashStore):
        def set(self, key, value):
            raise RuntimeError("no route to host")

    beats = heartbeats.Heartbeats(0, 2, "127.0.0.1", Gone(), 5.0, 5.0)
    assert beats.cut_off
    assert beats.missing == {1}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_peers_are_met_at_the_address_by_which_this_process_reaches_the_store(address):
    try:
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        pytest.skip("this machine has no such address")
    store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
    beats = heartbeats.Heartbeats(0, 2, stores.own_address(store), store, 5.0, 5.0)
    host, port = json.loads(store.get("heartbeats/0"))[:2]
    assert host == address
    socket.create_connection((host, port), 5).close()
    beats.close()


def test_a_caller_that_cannot_be_taken_for_want_of_descriptors_keeps_the_thread_from_spinning():
    beats = heartbeats.Heartbeats(0, 2, "127.0.0.1", dist.HashStore(), 5.0, 5.0)
    caller = socket.create_connection(beats._listener.getsockname(), 5)
    limits, begun = resource.getrlimit(resource.RLIMIT_NOFILE), time.monotonic()
    os.close(free := os.dup(0))  # the lowest that is not taken
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        beats._accept()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert beats._peers == []
    assert time.monotonic() - begun > 0.1
    beats._accept()
    assert len(beats._peers) == 1
    caller.close()
    beats.close()


def test_a_guard_that_fails_says_that_its_rank_is_looked_after_no_longer(monkeypatch):
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD=None))
    store = dist.HashStore()
    beats = heartbeats.Heartbeats(0, 2, "127.0.0.1", store, 5.0, 5.0)
    beats._run(lambda: json.loads("{"))
    (end, text) = (each := json.loads(store.get("heartbeats/0"))["loss"])["end"], each["text"]
    assert end == "left"
    assert "looks after its peers no longer (JSONDecodeError" in text
    beats._run(lambda: json.loads("{"))  # it has left: nothing is said twice


def test_the_causes_of_an_error_that_leads_back_to_itself_are_all_of_them():
    first, second = RuntimeError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    assert losses.chain_of(first) == [first, second]


def test_a_stranger_whose_line_nobody_can_read_ends_nothing(monkeypatch):
    beats = beating(store := Slow(), 5.0, monkeypatch)
    store.may.set()
    stranger = socket.create_connection(beats._listener.getsockname(), 5)
    stranger.settimeout(10)
    stranger.sendall(b"[" * 30000 + b"\n")
    with suppress(ConnectionResetError):
        assert stranger.recv(1) == b""
    assert not beats._left
    socket.create_connection(beats._listener.getsockname(), 5).close()
    stranger.close()
    beats.leave(End.LEFT, "")


@pytest.mark.parametrize(("said", "seconds"), [("", 5.0), ("0.5", 0.5), ("0", 0.0), ("1e9", 86400.0), ("inf", 86400.0)])
def test_a_detection_time_is_one_that_the_system_can_count(monkeypatch, said, seconds):
    monkeypatch.setenv(guard.DETECTION, said)
    assert guard.detection_s() == seconds


@pytest.mark.parametrize("said", ["-1", "nan", "soon"])
def test_what_is_no_detection_time_is_refused(monkeypatch, said):
    monkeypatch.setenv(guard.DETECTION, said)
    with pytest.raises(ValueError, match="is not a number of seconds"):
        guard.detection_s()


def met(machine):
    """The beats of rank 0 and its connection to rank 1, with the other end of it."""
    beats = heartbeats.Heartbeats(0, 2, "127.0.0.1", dist.HashStore(), 5.0, 30.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = beats._take(socket.create_connection(server.getsockname()), 1)
        theirs = server.accept()[0]
    peer.rank, peer.process = 1, Process("far", machine, 2**22 + 1)  # no process has that number
    return beats, peer, theirs


@pytest.mark.parametrize(("machine", "silent_s", "lost"), [
    (Process.own().machine, 5.0, True), (Process.own().machine, 4.0, False),
    ("another", 5.0, False), ("another", 29.0, False), ("another", 30.0, True),
])  # fmt: skip
def test_who_says_nothing_on_another_machine_may_keep_its_interpreter_and_has_longer(machine, silent_s, lost):
    beats, peer, theirs = met(machine)
    peer.silent_s = silent_s
    beats._judge(peer)
    assert beats.losses.has(1) is lost
    theirs.close()
    beats.close()


@pytest.mark.parametrize(("error", "end"), [
    (TimeoutError(), End.SILENT), (OSError(errno.EHOSTUNREACH, ""), End.SILENT),
    (ConnectionResetError(), End.CLOSED), (None, End.CLOSED),
])  # fmt: skip
@pytest.mark.parametrize("sending", [False, True])
def test_a_network_that_takes_nothing_any_more_is_silence_and_no_end_of_a_process(error, end, sending):
    beats, peer, theirs = met("another")
    theirs.close()
    if error is not None:
        peer.connection.close()
        peer.connection = Failing(error, sending)
    if sending:
        peer.send({})
    beats._selector.unregister = lambda _: None
    beats._hear(peer)
    assert beats.losses.causes([1], 0.0)[0].end is end
    beats.close()


class Failing:
    """A connection of which the kernel tells each error once, and then its end."""

    def __init__(self, error, sending):
        self.send = self._fail if sending else len
        self.recv = (lambda _: b"") if sending else self._fail
        self._error = error

    def _fail(self, _):
        raise self._error

    def close(self):
        pass


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only on Linux")
def test_a_connection_on_which_nothing_is_acknowledged_ends_within_the_detection_time():
    beats, peer, theirs = met("another")
    told = peer.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
    assert 0 < told <= 5.0 - beats._beat_s  # which begins with a sign of life
    theirs.close()
    beats.close()


@pytest.mark.parametrize(("said", "seconds"), [("", 30.0), ("7", 7.0)])
def test_who_has_said_how_long_a_rank_may_be_silent_has_said_it_of_other_machines_too(monkeypatch, said, seconds):
    monkeypatch.setenv(guard.DETECTION, said)
    asked = []
    monkeypatch.setattr(guard, "global_ranks_of", lambda group: [0, 1])
    monkeypatch.setattr(heartbeats, "heartbeats_of_world", lambda *given: asked.append(given))
    assert guard._new(SimpleNamespace(size=lambda: 2)) is None
    assert asked == [(float(said or 5), seconds)]


def test_an_affected_rank_is_missed_where_nobody_else_is():
    """It had gone on after a failure that was caught, say; one with a cause of its own is waited for first."""
    made = known((1, End.SILENT, 0.0), affected=[1, 2])
    assert ranks(made.interrupting(range(4), 0.0)) == [1]
    assert ranks(made.causes(range(4), 0.0)) == [1]
    made.add(loss(3), 0.5)
    assert ranks(made.causes(range(4), 0.0)) == [3]


class Slow(dist.HashStore):
    """Answers a rank's sign of life when it may, as one on another host."""

    def __init__(self):
        super().__init__()
        self.may, self.asked = threading.Event(), threading.Event()

    def set(self, key, value):
        said = json.loads(value)
        if isinstance(said, list) and said[-1] > 1:
            self.asked.set()
            assert self.may.wait(60)
        super().set(key, value)


def beating(store, detection_s, monkeypatch):
    beats, world = heartbeats.Heartbeats(0, 2, "127.0.0.1", store, detection_s, detection_s), Slow()
    monkeypatch.setattr(heartbeats.dist, "group", SimpleNamespace(WORLD=world))
    beats.start(world)
    assert store.asked.wait(10)
    return beats


def waited_for(what):
    end = time.monotonic() + 10
    while not what() and time.monotonic() < end:
        time.sleep(0.01)
    return what()


def test_a_store_that_freezes_before_all_are_met_cuts_this_rank_off_until_it_answers(monkeypatch):
    beats = beating(store := Slow(), 0.3, monkeypatch)
    assert waited_for(lambda: beats.cut_off)
    store.may.set()
    assert waited_for(lambda: not beats.cut_off)
    beats.leave(End.LEFT, "")


def test_a_store_that_has_frozen_before_this_rank_begins_keeps_it_from_nothing(monkeypatch):
    class Frozen(dist.HashStore):
        def compare_set(self, *_):
            time.sleep(60)

    monkeypatch.setattr(stores, "port_of", lambda _: 1)
    assert heartbeats.Heartbeats(0, 2, "127.0.0.1", Frozen(), 0.5, 0.5).cut_off


def test_a_rank_leaves_no_question_to_the_store_behind_but_one_that_is_never_answered(monkeypatch):
    """A thread that comes back from C++ code once the interpreter has gone ends the process by signal 6."""
    beats = beating(store := Slow(), 5.0, monkeypatch)
    threading.Timer(0.3, store.may.set).start()
    beats.leave(End.LEFT, "")
    assert store.may.is_set()
    assert not beats._rendezvous._asking.locked()
    beats, begun = beating(Slow(), 5.0, monkeypatch), time.monotonic()
    beats.leave(End.LEFT, "")
    beats.leave(End.LEFT, "")
    assert time.monotonic() - begun < 10
