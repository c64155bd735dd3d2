"""The driver's end of a launched job: one agent at every place, rank 0's own in a thread beside the driver."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import platform
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ..bad_input import BadInput
from .agent import DONE, HEARTBEAT_S, SILENT, Agent, DriverGone, Preparation, hear, tell
from .order import Order
from .outcomes import Outcome
from .place import MEET_LIMIT_S, REMEDY, Place, listening

_READY_LIMIT_S = 240.0  # more than a fork server may take to load everything
_LOST_S = 60.0  # without a sign of life; agents give one every few seconds
_GATHER_LIMIT_S = 60.0
_KNOCK_LIMIT_S = 10.0  # for a stranger at the listener
_TOKEN_BYTES = 32


class AgentLost(KeyboardInterrupt):
    """An agent ended, or is not heard from. No further check can run: the run ends as if it were interrupted."""


@dataclass
class Member:
    """One agent as the driver sees it."""

    rank: int
    about: dict[str, Any]  # host, machine, torch …
    agent: Connection
    state: str = ""
    heard: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.about['host']}"


class AgentGroup:
    """All agents of a job. ``lost`` says what went wrong, if an agent was lost."""

    def __init__(self, place: Place, members: Sequence[Member], store: dist.Store | None = None) -> None:
        self.place = place
        self.members = list(members)
        self.lost = ""
        self._store = store  # kept: where the launcher has none, it is this object that serves it
        self._prepared = False

    @property
    def here(self) -> int:
        """How many of the ranks are on this machine."""
        return sum(member.about["machine"] == self.members[0].about["machine"] for member in self.members)

    @property
    def one_machine(self) -> bool:
        """Whether files and the loopback lead from each rank to each; not between hosts that a machine plays."""
        return self.here == len(self.members) and len({member.about["network"] for member in self.members}) == 1

    def about(self) -> dict[str, Any]:
        """For the header of the record."""
        machines = len({member.about["machine"] for member in self.members})
        hosts = list(dict.fromkeys(member.about["host"] for member in self.members))
        nodes = self.place.nodes or machines
        return {"name": self.place.launcher, "world": self.place.world, "nodes": nodes, "hosts": hosts}

    def prepare(self, preparation: Preparation) -> None:
        """Have every agent load what the ranks will need; ``carry_out`` waits for it."""
        for member in self.members:
            self._tell(member, "prepare", preparation)
        self._prepared = False

    def carry_out(self, order: Order, limit_s: float, stall_s: float) -> list[Outcome]:
        """Run one order on the first ``order.world`` places, and gather what became of each rank."""
        if not self._prepared:
            for member in self.members:
                self._expect(member, "ready", _READY_LIMIT_S)
            self._prepared = True
        working = self.members[: order.world]
        for member in working:
            member.state, member.heard = "", time.monotonic()
            self._tell(member, "do", order, stall_s)
        self._watch(working, time.monotonic() + limit_s, stall_s)
        for member in working:
            self._tell(member, "gather")
        outcomes: list[Outcome] = [self._expect(member, "outcome", _GATHER_LIMIT_S)[0] for member in working]
        for member in working:
            self._tell(member, "dismiss")
        for member in working:
            self._expect(member, "free", _GATHER_LIMIT_S)
        return outcomes

    def end(self) -> None:
        """Let every agent go; one that is gone already is no matter."""
        for member in self.members:
            with contextlib.suppress(OSError):
                tell(member.agent, "end")
            member.agent.close()

    def _watch(self, working: Sequence[Member], deadline: float, stall_s: float) -> None:
        """Until all are done, the deadline has passed, or those that are not done have long been silent together."""
        since = time.monotonic()  # of the last change of any state
        while True:
            now = time.monotonic()
            unfinished = [member for member in working if member.state != DONE]
            asleep = all(member.state == SILENT for member in unfinished) and now - since > stall_s
            if not unfinished or now >= deadline or asleep:
                return
            for member in unfinished:
                if now - member.heard > _LOST_S:
                    self._lose(member, f"was not heard from for {_LOST_S:g} s")
            ready = wait([member.agent for member in unfinished], min(HEARTBEAT_S / 10, deadline - now))
            for member in unfinished:
                if member.agent in ready:
                    before = member.state
                    self._hear(member)
                    since = time.monotonic() if member.state != before else since

    def _hear(self, member: Member) -> tuple[Any, ...]:
        """One message of an agent; what it says of its state is noted."""
        try:
            word, *rest = hear(member.agent)
        except (EOFError, OSError):
            self._lose(member, "has ended")
        member.heard = time.monotonic()
        if word == "broken":
            self._lose(member, f"cannot go on: {rest[0]}")
        if word == "state":
            (member.state,) = rest
        return (word, *rest)

    def _expect(self, member: Member, wanted: str, limit_s: float) -> list[Any]:
        deadline = time.monotonic() + limit_s
        while True:
            if not member.agent.poll(max(0.0, deadline - time.monotonic())):
                self._lose(member, f"did not say {wanted!r} within {limit_s:g} s")
            word, *rest = self._hear(member)
            if word == wanted:
                return rest

    def _tell(self, member: Member, *words: Any) -> None:
        try:
            tell(member.agent, *words)
        except OSError:
            self._lose(member, "has ended")

    def _lose(self, member: Member, what: str) -> NoReturn:
        self.lost = f"the agent of {member} {what}; see the launcher's own log for its last words"
        raise AgentLost(self.lost)


# --- meeting ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def gathered(place: Place) -> Iterator[AgentGroup]:
    """On rank 0: wait for an agent from every place; let all of them go at the end."""
    store = place.store()
    members = [_own(place), *_arrivals(place, store)]
    agent_group = AgentGroup(place, members, store)
    try:
        _alike(members)
        yield agent_group
    finally:
        agent_group.end()


def _own(place: Place) -> Member:
    """Rank 0's own agent: a thread, so that the driver can watch over its rank as over any other."""
    ours, theirs = Pipe()
    agent = Agent(0, place.local_rank or 0, theirs)

    def serve() -> None:
        with contextlib.suppress(DriverGone):
            agent.serve()

    threading.Thread(target=serve, name="agent", daemon=True).start()
    return Member(0, about_here(), ours)


def _arrivals(place: Place, store: dist.Store) -> list[Member]:
    """Open a listener, tell in the store where it is, and let the agents in."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    deadline = time.monotonic() + MEET_LIMIT_S
    found: dict[int, Member] = {}
    with _listener(place) as listener, contextlib.ExitStack() as afterwards:
        afterwards.callback(store.delete_key, "listener")  # whoever reads the store later finds no token
        store.set("listener", json.dumps({"port": listener.getsockname()[1], "token": token.hex()}))
        while len(found) < place.world - 1:
            listener.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(1, place.world) if rank not in found)
                raise BadInput(
                    f"rank {missing} did not come within {MEET_LIMIT_S:g} s; was every process started? {REMEDY}"
                ) from None
            member = _admit(sock, token)
            if member is not None:
                found[member.rank] = member
    return [found[rank] for rank in sorted(found)]


def _listener(place: Place) -> socket.socket:
    """A listening socket where all have their way to, and nowhere else."""
    try:
        return listening(place.address, 0, place.world)
    except OSError as error:
        raise BadInput(
            f"rank 0 cannot listen at MASTER_ADDR={place.address}: {error}. Give the address by which other machines "
            f"reach this one. {REMEDY}"
        ) from error


def _admit(sock: socket.socket, token: bytes) -> Member | None:
    """The agent at the other end; None for a stranger, of whom nothing is unpickled."""
    sock.settimeout(_KNOCK_LIMIT_S)
    try:
        shown = b""
        while len(shown) < _TOKEN_BYTES + 4:
            more = sock.recv(_TOKEN_BYTES + 4 - len(shown))
            if not more:
                break
            shown += more
    except OSError:
        shown = b""
    if len(shown) < _TOKEN_BYTES + 4 or not hmac.compare_digest(shown[:_TOKEN_BYTES], token):
        sock.close()
        return None
    agent = connection(sock)
    try:
        (about,) = hear(agent)
        return Member(struct.unpack("!I", shown[_TOKEN_BYTES:])[0], about, agent)
    except (EOFError, OSError):  # it has ended meanwhile, and is missed when the time is up
        return None


def connect(place: Place) -> Connection:
    """On every other rank: find the driver's listener and go in."""
    store = place.store()
    try:
        store.wait(["listener"], timedelta(seconds=MEET_LIMIT_S))
        listener = json.loads(store.get("listener"))
        sock = socket.create_connection((place.address, listener["port"]), timeout=MEET_LIMIT_S)
        sock.sendall(bytes.fromhex(listener["token"]) + struct.pack("!I", place.rank))
    except (RuntimeError, OSError) as error:
        raise BadInput(f"rank {place.rank} did not reach rank 0 at {place.address}: {error}. {REMEDY}") from error
    made = connection(sock)
    tell(made, about_here())
    return made


def connection(sock: socket.socket) -> Connection:
    """A socket as a connection, with limits: a peer that does not read, or whose machine is gone, is noticed."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not everywhere under this name
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    limit = struct.pack("ll", int(_LOST_S), 0)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(sock.detach())


def about_here() -> dict[str, Any]:
    """What an agent says of itself. Processes are on one machine if both name and boot are the same."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        network = ""
    host = platform.node()
    versions = {"torch": str(torch.__version__), "python": platform.python_version()}
    return {"host": host, "machine": f"{host} {boot}", "network": network, "pid": os.getpid(), **versions}


def _alike(members: Sequence[Member]) -> None:
    """Ranks with different versions would judge something that nobody uses."""
    first = members[0]
    for member in members[1:]:
        for what in ("torch", "python"):
            if member.about[what] != first.about[what]:
                raise BadInput(
                    f"{member} has {what} {member.about[what]}, {first} has {first.about[what]}; use one environment"
                )
