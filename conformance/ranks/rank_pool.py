"""N living ranks as the driver sees them: hand them an order, hear what they say, question and dismiss them."""

from __future__ import annotations

import contextlib
import pickle
import re
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from .control_socket import ANSWERED, FREE, REPORTED
from .files import Folder, size_of, tail, write_whole
from .fork_server_client import STACKS_SIGNAL, ForkServerClient
from .order import Order

_NO_NAME = "The hostname of the client socket cannot be retrieved"  # torch's complaint about NO_DNS
_STACKS_LIMIT_S = 5.0  # a process that cannot even be interrupted (stopped, or stuck in a disk wait) writes none
_ANSWER_LIMIT_S = 3.0  # likewise; on a busy machine an answer takes its time
_END_LIMIT_S = 10.0
_PUT_AWAY_LIMIT_S = 10.0


class RankPool:
    """Fresh ranks. ``folder`` holds their words and stacks; each run has a folder of its own within it."""

    def __init__(self, fork_server: ForkServerClient, world: int, first: int = 0) -> None:
        self._fork_server = fork_server
        self._first = first  # what its first member is called, where the pool is a part of a larger one
        self.folder = Folder(Path(tempfile.mkdtemp(prefix="pool-", dir=fork_server.folder)))
        self.pids, self._sockets = fork_server.fork(world, self.folder.path)
        self.world = world
        self.runs = 0  # so far
        self.ended: dict[int, int] = {}  # exit status by rank
        self._said: list[set[bytes]] = [set() for _ in range(world)]
        self._closed: set[int] = set()  # ranks whose end of the socket is closed: they are about to end

    def all_alive(self) -> bool:
        """Whether no rank has ended, for example while it waited for another run."""
        self.listen(0.0)
        return not self.ended and not self._closed and not any(map(_is_ending, self.pids))

    @contextlib.contextmanager
    def started(self, order: Order) -> Iterator[Folder]:
        """Have every rank do what is ordered; the folder of this run, which is there for the time of the block."""
        folder = Folder(self.folder.path / f"run{order.number}")
        folder.path.mkdir()
        write_whole(folder.order, pickle.dumps(order))
        self.runs += 1
        self._said = [set() for _ in range(self.world)]
        for rank in range(self.world):
            self._tell(rank, f"do {folder.path}")
        try:
            yield folder
        finally:
            shutil.rmtree(folder.path, ignore_errors=True)

    def listen(self, limit_s: float) -> None:
        """Wait until some rank says something or ends, at most ``limit_s``."""
        by_fd = {sock.fileno(): rank for rank, sock in enumerate(self._sockets) if rank not in self._closed}
        for fd in _readable([*by_fd, self._fork_server.fileno()], limit_s):
            if fd in by_fd:
                self._hear(by_fd[fd])
        for pid, status in self._fork_server.ended().items():
            if pid in self.pids:
                self.ended[self.pids.index(pid)] = status

    def reported(self, rank: int) -> bool:
        return REPORTED in self._said[rank]

    def unfinished(self) -> list[int]:
        """The ranks that have neither reported nor ended."""
        return [rank for rank in range(self.world) if not self.reported(rank) and rank not in self.ended]

    def stacks(self, ranks: Collection[int]) -> dict[int, str]:
        """Have the given ranks write where each of their threads is."""
        before = {rank: size_of(self.folder.stacks(rank)) for rank in ranks}
        self._fork_server.signal([self.pids[rank] for rank in ranks], STACKS_SIGNAL)
        deadline = time.monotonic() + _STACKS_LIMIT_S
        sizes: dict[int, int] = {}
        while time.monotonic() < deadline:
            time.sleep(0.05)
            last, sizes = sizes, {rank: size_of(self.folder.stacks(rank)) for rank in ranks}
            if sizes == last and all(sizes[rank] > before[rank] for rank in ranks):
                break
        missing = f"(no stacks: the process did not answer within {_STACKS_LIMIT_S:g} s)"
        return {rank: _without_control_socket(self._new_stacks(rank, before[rank])) or missing for rank in ranks}

    def bring_traces_up_to_date(self, ranks: Collection[int]) -> None:
        """Have the given ranks note which collectives have ended; one that cannot answer keeps what it has noted."""
        for rank in ranks:
            self._tell(rank, "how far")
        deadline = time.monotonic() + _ANSWER_LIMIT_S
        while time.monotonic() < deadline:
            if all(ANSWERED in self._said[rank] or rank in self.ended for rank in ranks):
                return
            self.listen(deadline - time.monotonic())

    def put_away(self) -> bool:
        """After a run in which all is well: ranks destroy their groups. Returns whether all can be used again."""
        for rank in range(self.world):
            self._tell(rank, "put away")
        deadline = time.monotonic() + _PUT_AWAY_LIMIT_S
        while time.monotonic() < deadline and not self.ended:
            if all(FREE in said for said in self._said):
                return True
            self.listen(deadline - time.monotonic())
        return False

    def dismiss(self) -> None:
        """End every rank with all that descends from it, and wait until that is so."""
        try:
            deadline = time.monotonic() + _END_LIMIT_S
            self._fork_server.signal(self.pids, signal.SIGKILL)
            while len(self.ended) < self.world and time.monotonic() < deadline:
                self.listen(deadline - time.monotonic())
        finally:
            for sock in self._sockets:
                sock.close()
            shutil.rmtree(self.folder.path, ignore_errors=True)

    def last_words(self, rank: int) -> str:
        """The end of what the rank printed, and where it was if a fatal signal struck it."""
        words = [line for line in tail(self.folder.words(rank)).splitlines() if _NO_NAME not in line]
        return "\n".join([*words, tail(self.folder.stacks(rank))]).strip()

    def echo(self) -> None:
        """Print the end of what every rank printed."""
        for rank in range(self.world):
            for line in tail(self.folder.words(rank)).splitlines():
                if _NO_NAME not in line:
                    print(f"[rank {self._first + rank}] {line}", flush=True)

    def _new_stacks(self, rank: int, start: int) -> str:
        with contextlib.suppress(OSError):
            return self.folder.stacks(rank).read_bytes()[start:].decode(errors="replace")
        return ""

    def _tell(self, rank: int, word: str) -> None:
        with contextlib.suppress(OSError):
            self._sockets[rank].sendall(word.encode() + b"\n")

    def _hear(self, rank: int) -> None:
        with contextlib.suppress(OSError):
            heard = self._sockets[rank].recv(64, socket.MSG_DONTWAIT)
            self._said[rank].update(bytes([one]) for one in heard)
            if heard:
                return
        self._closed.add(rank)


def _is_ending(pid: int) -> bool:
    """Whether a process has got its end though its sockets may still be open (a thread of it is slower). Linux only."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # gone, or no such folder here: then its sockets tell
        return False
    return state in "ZXx"


def _readable(fds: list[int], limit_s: float) -> list[int]:
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(max(0.0, limit_s) * 1000)]


def _without_control_socket(stacks: str) -> str:
    """The stacks without the thread that every rank has for the driver's sake."""
    threads = re.split(r"\n(?=(?:Current thread|Thread) 0x)|\n\n", stacks.strip())
    return "\n\n".join(thread.strip() for thread in threads if "_listen_to_driver" not in thread)
