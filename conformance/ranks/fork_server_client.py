"""The driver's end of the fork server: starts it, asks it for ranks, hears of their ends, and stops it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .files import tail

#: Loaded once, before any rank is forked. None of these starts a thread or touches an accelerator when imported.
PRELOAD = (
    "torch", "torch.distributed", "torch._dynamo", "pytest", "hypothesis", "conformance.ranks.worker",
    "conformance.ranks.recording", "conformance.subjects.torch", "conformance.subjects.impl",
    "conformance.api.checking", "conformance.api.oracle", "conformance.fixtures.models",
)
#: One thread per rank: ranks share few cores, and OpenMP's workers would not survive the fork.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
#: Whenever a rank connects to the store, torch looks up the name of ``::ffff:127.0.0.1``, which no hosts file knows; a
#: name server that is slow or drops the question then holds the rank for 5 s and more. So glibc is told not to ask.
NO_DNS = {"RES_OPTIONS": "attempts:0"}
_START_DEADLINE_S = 180.0  # loading torch from a cold disk on a loaded machine
_FORK_DEADLINE_S = 60.0
_END_LIMIT_S = 10.0
STACKS_SIGNAL = signal.SIGUSR1  # has a rank write its stacks


class ForkServerFailed(RuntimeError):
    """The process that ranks are forked from could not be started, or ended by itself."""


class ForkServerClient:
    """Owns one fork server and the folder that its ranks' files lie in. Starts at once, in the background.

    With a ``base``, its fork server is forked from that one's and has loaded the same. Each serves one thread.
    ``first``, with a ``base`` only: a ``module:function`` that the fork server calls with a text before it serves.
    """

    def __init__(
        self, preload: Sequence[str] = (), base: ForkServerClient | None = None, first: tuple[str, str] | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        self._owner = os.getpid()
        self._log: Path = base._log if base is not None else self.folder / "fork_server.log"
        self._control, theirs = socket.socketpair()
        self._sending = threading.Lock()
        self._text = b""
        self._messages: list[dict[str, Any]] = []  # received while waiting for another
        self._port = 0  # of the store; known when the fork server is ready
        self._process: subprocess.Popen[bytes] | None = None  # None: the fork server is a child of another
        with theirs:
            if base is None:
                self._process = self._started(theirs, preload)
            else:
                self._fork_from(base, theirs, first)

    def _started(self, theirs: socket.socket, preload: Sequence[str]) -> subprocess.Popen[bytes]:
        command = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            "from conformance.ranks.fork_server import main\n"
            f"main({theirs.fileno()}, {str(self.folder)!r}, {[*PRELOAD, *preload]!r})"
        )
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-c", command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=[theirs.fileno()], start_new_session=True, env={**NO_DNS, **os.environ, **ONE_THREAD},
            )

    def _fork_from(self, base: ForkServerClient, theirs: socket.socket, first: tuple[str, str] | None) -> None:
        try:
            base._send({"fork_server": str(self.folder), "first": list(first or ())}, [theirs])
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise ForkServerFailed(base._why("could not be reached")) from error

    def _send(self, request: dict[str, Any], sockets: Sequence[socket.socket] = ()) -> None:
        """Any thread may: others ask for the fork servers that are forked from this one."""
        line = json.dumps(request).encode() + b"\n"
        with self._sending:
            if sockets:
                socket.send_fds(self._control, [line], [each.fileno() for each in sockets])
            else:
                self._control.sendall(line)

    def fork(self, world: int, folder: Path) -> tuple[list[int], list[socket.socket]]:
        """New ranks with their files in ``folder``: process ids and this end of their control sockets, by rank."""
        self._await_ready()
        pairs = [socket.socketpair() for _ in range(world)]
        try:
            self._send({"fork": list(range(world)), "folder": str(folder)}, [theirs for _, theirs in pairs])
            pids: list[int] = self._await("forked", _FORK_DEADLINE_S)["forked"]
        except BaseException as error:  # an answer may still come, and must not be taken for that to another request
            why = self._why("could not be reached")
            self.close()
            if isinstance(error, OSError):
                raise ForkServerFailed(why) from error
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        return pids, [ours for ours, _ in pairs]

    def signal(self, pids: Sequence[int], number: int) -> None:
        """Send a signal to those of ``pids`` that have not ended; SIGKILL reaches all that descends from them."""
        with contextlib.suppress(OSError):
            self._send({"signal": int(number), "pids": list(pids)})

    def fileno(self) -> int:
        """Readable when ranks may have ended."""
        return self._control.fileno()

    def ended(self) -> dict[int, int]:
        """Ranks that ended since the last call: exit code, or minus the signal, by process id. Does not block."""
        self._receive(0.0)
        messages, self._messages = self._messages, []
        return {one["ended"]: one["status"] for one in messages if "ended" in one}

    @property
    def port(self) -> int:
        """Where the store is, in which ranks meet, on 127.0.0.1."""
        self._await_ready()
        return self._port

    @property
    def alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self) -> None:
        """End the fork server, and with it every rank."""
        if self._owner != os.getpid():  # inherited by a fork of the driver: not ours to end
            return
        if self._process is None:
            self._await_end_of_fork()
        self._control.close()
        if self._process is not None:
            try:
                self._process.wait(_END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its ranks then die by their own guard
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _await_end_of_fork(self) -> None:
        """It learns that no more requests come, ends its ranks, and its end of the socket closes."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            self._control.settimeout(_END_LIMIT_S)
            while self._control.recv(65536):
                continue

    def _await_ready(self) -> None:
        if not self._port:
            self._port = self._await("ready", _START_DEADLINE_S)["ready"]

    def _await(self, kind: str, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while True:
            for index, one in enumerate(self._messages):
                if kind in one:
                    return self._messages.pop(index)
            left = deadline - time.monotonic()
            if left <= 0:
                raise ForkServerFailed(self._why(f"was not heard from for {limit_s:g} s"))
            self._receive(left)

    def _receive(self, limit_s: float) -> None:
        if not select.select([self._control], [], [], limit_s)[0]:
            return
        try:
            text = self._control.recv(65536)
        except ConnectionError:
            text = b""
        if not text:
            raise ForkServerFailed(self._why("ended by itself"))
        *lines, self._text = (self._text + text).split(b"\n")
        self._messages += [json.loads(line) for line in lines]

    def _why(self, what: str) -> str:
        code = None if self._process is None else self._process.poll()
        state = "" if code is None else f" (exit status {code})"
        output = tail(self._log)
        return (
            f"the process that ranks are forked from {what}{state}. Usual causes: it was killed for want of memory, "
            f"or a preloaded module ends the interpreter. Its last output: {output or 'none'}"
        )

