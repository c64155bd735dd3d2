"""Signs of life between the processes of a world: who is killed or freezes is known to all in seconds.

Each process is connected to those whose ranks differ from its own by a power of two: about 2 log2(N) of them, in a
small world all. Over each connection a thread sends one line a second, a fifth of the detection time. The end of a
connection is the end of a process: the kernel closes it for one that is killed, and gives it up where the other host
acknowledges nothing (Linux). One that is frozen says nothing any more: on this machine it is looked at; on another it
may be one that keeps the interpreter, and is given more time. Whoever notices an end tells all others, from connection
to connection.

    hello     token, rank, process              first line of each side; without the token nothing else is read
    at        what this rank does               the sign of life
    loss      a rank's end, its own included    passed on, once
    affected  a rank that fails because of another one has; passed on, once
    waits     what a rank has been waiting for (stalls.py); passed on, once for each of its looks
    stall     ranks that wait for each other, as one of them has noticed; passed on, once

Until all are met, a second thread of each looks after them in the store (``rendezvous``). Time in which this process
did not run itself (stopped, or without a processor) does not count as another's silence.
"""

from __future__ import annotations

import atexit
import hmac
import json
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from multiprocessing import util
from typing import Any

import torch.distributed as dist

from . import rendezvous, stalls
from . import store as stores
from .losses import End, Loss, Losses, follows_from_a_peer
from .processes import Process, Signs, has_moved
from .tally import latest_label

_BEATS_IN_DETECTION = 5
_LOOKS_IN_A_BEAT = 4
_CALLS_IN_A_BEAT = 8  # at least, of peers that are not met: signs of life in the store are seen as soon as others
_LONGEST_LINE = 32768  # a loss holds a text of 500 characters, of up to twelve bytes each
_CONNECT_S = 1.0
_CALL_EVERY_S = 0.1


class Peer:
    """One connection. ``rank`` is None until the other side has said hello with the right token."""

    def __init__(self, connection: socket.socket, called: int | None) -> None:
        self.connection = connection
        self.rank: int | None = None
        self.called = called  # the rank that was called, on the side that called
        self.process: Process  # of the other side, once its rank is known
        self.doing = ""  # as it last said
        self.silent_s = 0.0  # counted while this process runs itself
        self.signs: Signs | None = None  # of its process, when half of the detection time had passed
        self.unread = b""
        self.end = End.CLOSED  # what it means if the connection ends

    def lines(self) -> list[bytes] | None:
        """What has come since; None if the connection has ended."""
        try:
            piece = self.connection.recv(65536)
        except OSError as error:
            return [] if self._goes_on(error) else None
        *whole, self.unread = (self.unread + piece).split(b"\n")
        return whole if piece and len(self.unread) <= _LONGEST_LINE else None

    def send(self, said: dict[str, object]) -> None:
        """One line, or nothing where the other side does not read."""
        try:
            self.connection.send(json.dumps(said).encode() + b"\n")
        except OSError as error:
            self._goes_on(error)

    def _goes_on(self, error: OSError) -> bool:
        """Whether the connection does after this error; if not, which end it means."""
        if isinstance(error, BlockingIOError):
            return True
        if not isinstance(error, ConnectionError):  # the network, or the other host, has acknowledged nothing
            self.end = End.SILENT
        return False


class Heartbeats:
    """This process's connections in one world, and the thread that looks after them."""

    def __init__(
        self, rank: int, size: int, address: str, store: dist.Store, detection_s: float, elsewhere_s: float
    ) -> None:
        """``elsewhere_s``: the detection time for a process on another machine, which cannot be looked at."""
        self.rank = rank
        self.detection_s = detection_s
        self._elsewhere_s = elsewhere_s
        self.losses = Losses()
        self.waits = stalls.Waits()
        #: that of the world, by a connection on which no other thread of the program waits
        self.store = store
        self._looks = 0  # of this rank's long waits
        self._process = Process.own()
        self._rendezvous = rendezvous.Rendezvous(rank, self._process, store, detection_s)
        self._expected = neighbours(rank, size)
        self._connect_s = min(_CONNECT_S, detection_s / 2 / len(self._expected))  # of all: half of that time
        self._peers: list[Peer] = []
        self._listening: dict[int, rendezvous.Address] = {}  # seen in the store, at the last look
        self._lock = threading.RLock()  # of sending and of the list
        self._left = False
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._beat_s = detection_s / _BEATS_IN_DETECTION
        self._last_pass = time.monotonic()
        self._next_beat = 0.0
        host, port, *_ = self._listener.getsockname()
        self._rendezvous.publish(store, (host, port))

    def start(self, world: dist.ProcessGroup) -> None:
        """Begin; the end of the program ends it, and so does that of the world."""
        self._world = weakref.ref(world)
        for work in (self._beat, self._meet):
            threading.Thread(target=self._run, args=(work,), name="joinery-heartbeats", daemon=True).start()

    @property
    def cut_off(self) -> bool:
        """Whether the store was lost before all neighbours were met: what becomes of them is not to be learned."""
        return self._rendezvous.cut_off

    @property
    def missing(self) -> set[int]:
        """The neighbours that this process has never met."""
        met = {peer.rank for peer in self._peers}
        return {rank for rank in self._expected - met if not self.losses.has(rank)}

    @property
    def unheard(self) -> set[int]:
        """The neighbours that are there, and not met yet: of one on another machine only silence tells that it ends."""
        return self.missing & self._listening.keys()

    # -- what the rest of the process says

    def mark_affected(self) -> None:
        """This rank is about to fail because another has: whatever becomes of it is not the cause."""
        if self.losses.add_affected(self.rank, self.losses.epoch):
            self._tell({"affected": self.rank, "epoch": self.losses.epoch})

    def stand(self, members: str, begun: float, place: str) -> None:
        """This rank has been waiting for long: tell all others, as long as it does."""
        own = {peer.connection.fileno() for peer in self._peers}
        moved = stalls.moved_bytes(own, self._rendezvous.store_port)
        if moved is not None:
            self._looks += 1
            wait = stalls.Wait(self.rank, members, begun, place, moved)
            self._pass_on(wait, self._looks)

    def _pass_on(self, wait: stalls.Wait, look: int) -> None:
        if self.waits.add(wait, look, time.monotonic()):
            self._tell({"waits": vars(wait), "look": look})

    def tell_stall(self, members: str, waits: list[stalls.Wait]) -> None:
        """These ranks wait for each other, and this one is about to raise."""
        self._tell({"stall": members, "mark": stalls.mark(waits)})

    def leave(self, end: End, text: str) -> None:
        """This process takes part no longer: say so, and close. What is said a second time nobody hears."""
        loss = Loss(self.rank, end, str(self._process), "", self.rank, text)
        self._rendezvous.leave(loss)  # for those that have not met this process
        with self._lock:
            self._left = True
            for peer in self._peers:
                peer.send({"loss": loss.as_json()})
            self.close()

    def close(self) -> None:
        """The connections of this process, or the copies of them that a child holds, which would outlive it."""
        for peer in self._peers:
            peer.connection.close()
        self._listener.close()
        self._selector.close()

    # -- the threads

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # what is closed is one, too, once this process has left
            self.leave(End.LEFT, f"looks after its peers no longer ({type(error).__name__}: {error})")

    def _beat(self) -> None:
        while not self._left:
            world = self._world()
            if world is None or world is not dist.group.WORLD:
                self.leave(End.LEFT, "has destroyed its process groups")
                return
            del world
            self._pass()

    def _meet(self) -> None:
        """Call the peers until all are met. The store may not answer, nor the host of a peer."""
        while not (self._rendezvous.is_over or self._left):
            self._call()
            time.sleep(min(_CALL_EVERY_S, self._beat_s / _CALLS_IN_A_BEAT))

    def _pass(self) -> None:
        """Hear what has come, and say what is due."""
        for key, _ in self._selector.select(self._beat_s / _LOOKS_IN_A_BEAT):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._hear(key.data)
        now = time.monotonic()
        ran_s = min(now - self._last_pass, 2 * self._beat_s / _LOOKS_IN_A_BEAT)
        self._last_pass = now
        self._rendezvous.ran(ran_s)
        if now >= self._next_beat:
            self._next_beat = now + self._beat_s
            self._tell({"at": latest_label()})
        for peer in list(self._peers):
            peer.silent_s += ran_s
            self._judge(peer)

    def _judge(self, peer: Peer) -> None:
        if peer.rank is None or peer.silent_s < self.detection_s / 2:
            return
        near = self._process.is_on_same_machine(peer.process)
        if near and peer.signs is None:
            peer.signs = peer.process.signs()
        if peer.silent_s < (self.detection_s if near else self._elsewhere_s):
            return
        if peer.signs is not None and has_moved(peer.signs, peer.process.signs()):
            peer.silent_s, peer.signs = 0.0, None
        else:
            self._report(peer, End.SILENT)

    def _report(self, peer: Peer, end: End) -> None:
        assert peer.rank is not None
        self._learn(Loss(peer.rank, end, str(peer.process), peer.doing, self.rank))

    def _learn(self, loss: Loss) -> None:
        """Take note of a loss and pass it on, if it is new."""
        if self.losses.add(loss, time.monotonic()):
            self._tell({"loss": loss.as_json()})

    def _tell(self, said: dict[str, object]) -> None:
        with self._lock:
            for peer in self._peers:
                if peer.rank is not None:
                    peer.send(said)

    # -- connections

    def _call(self) -> None:
        """Look after the peers that are not met yet; the higher rank calls the lower one."""
        ended, self._listening = self._rendezvous.look(self.missing)
        for loss in ended:
            self._learn(loss)
        called = {peer.called for peer in self._peers}
        for rank, address in self._listening.items():
            if rank < self.rank and rank not in called:
                self._call_one(rank, address)
        if not self.missing:
            self._rendezvous.end()

    def _call_one(self, rank: int, address: rendezvous.Address) -> None:
        try:
            connection = socket.create_connection(address, self._connect_s)
        except OSError:
            return
        self._greet(self._take(connection, rank))

    def _accept(self) -> None:
        try:
            self._take(self._listener.accept()[0], None)
        except OSError:  # no descriptor is free, say: the caller stays in the queue, and keeps its connection readable
            time.sleep(self._beat_s / _LOOKS_IN_A_BEAT)

    def _take(self, connection: socket.socket, called: int | None) -> Peer:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # which begins with the next sign of life, when that is repeated for the first time
        stores.limit_connection(connection, self.detection_s - 1.25 * self._beat_s)
        peer = Peer(connection, called)
        with self._lock:
            self._selector.register(connection, selectors.EVENT_READ, peer)  # ValueError once this process has left
            self._peers.append(peer)
        return peer

    def _greet(self, peer: Peer) -> None:
        mine = self._process
        peer.send({"hello": self._rendezvous.token, "rank": self.rank, "process": [mine.host, mine.machine, mine.pid]})

    def _hear(self, peer: Peer) -> None:
        lines = peer.lines()
        if lines is None:
            self._drop(peer)
            if peer.rank is not None:
                self._report(peer, peer.end)
            return
        peer.silent_s, peer.signs = 0.0, None
        for line in lines:
            try:
                self._understand(peer, json.loads(line))
            except (ValueError, KeyError, TypeError, RecursionError):  # the last: brackets in brackets in brackets
                self._drop(peer)
                return

    def _understand(self, peer: Peer, said: dict[str, Any]) -> None:
        if peer.rank is None:
            self._admit(peer, said)
        elif "at" in said:
            peer.doing = said["at"]
        elif "loss" in said:
            self._learn(Loss.from_json(said["loss"]))
        elif "waits" in said:
            self._pass_on(stalls.Wait(**said["waits"]), int(said["look"]))
        elif "stall" in said:
            if self.waits.declare(str(said["stall"]), str(said["mark"])):
                self._tell(said)
        elif self.losses.add_affected(int(said["affected"]), int(said["epoch"])):
            self._tell(said)

    def _admit(self, peer: Peer, said: dict[str, Any]) -> None:
        """The first line of a connection: without the token of this world there is no second one."""
        if not hmac.compare_digest(str(said["hello"]).encode(), self._rendezvous.token.encode()):
            raise ValueError("a stranger")
        host, machine, pid = said["process"]
        peer.process = Process(str(host), str(machine), int(pid))
        rank = int(said["rank"])
        if rank > self.rank:  # the higher one has called
            self._greet(peer)
        peer.rank = rank

    def _drop(self, peer: Peer) -> None:
        with self._lock:
            self._peers.remove(peer)
            self._selector.unregister(peer.connection)
            peer.connection.close()


def neighbours(rank: int, size: int) -> set[int]:
    """The ranks to which this one is connected: those at a distance of a power of two, either way round."""
    return {(rank + sign * (1 << k)) % size for k in range(size.bit_length()) for sign in (1, -1)} - {rank}


# -- of this process

_by_world: weakref.WeakKeyDictionary[dist.ProcessGroup, Heartbeats | None] = weakref.WeakKeyDictionary()
_beginning = threading.Lock()  # threads of a program may come to their first models at the same time
#: all that have a thread, of worlds that are gone as well
_begun_here: weakref.WeakSet[Heartbeats] = weakref.WeakSet()


def heartbeats_of_world(detection_s: float, elsewhere_s: float) -> Heartbeats | None:
    """The beats of the default group, begun where it was not; None where there can be none."""
    world = dist.group.WORLD
    assert world is not None  # torch.distributed knows a group that has more than one rank
    with _beginning:
        if world not in _by_world:
            _by_world[world] = _begun(world, detection_s, elsewhere_s)
        return _by_world[world]


def _begun(world: dist.ProcessGroup, detection_s: float, elsewhere_s: float) -> Heartbeats | None:
    if detection_s <= 0:
        return None
    try:
        found = rendezvous.store_of(world, detection_s)
        if found is None:
            return None
        store, address = found
        beats = Heartbeats(world.rank(), world.size(), address, store, detection_s, elsewhere_s)
    except OSError:  # no socket to be had: then nobody hears of this rank
        return None
    beats.start(world)
    _begun_here.add(beats)
    util.Finalize(None, _leave_all, exitpriority=-100)  # a child of multiprocessing's ends without what atexit holds
    return beats


def _leave_all() -> None:
    """The program ends: say how. An exception that nobody has caught is the last one that Python has printed."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)  # a child of multiprocessing's is still raising it
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    for beats in list(_begun_here):
        if error is None or (beats.losses.is_affected(beats.rank) and follows_from_a_peer(error)):
            beats.leave(End.LEFT, "has ended its program")
        else:
            beats.leave(End.RAISED, f"{type(error).__name__}: {error}")


def _forget_all() -> None:
    for beats in list(_begun_here):
        beats.close()
    _begun_here.clear()


atexit.register(_leave_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
