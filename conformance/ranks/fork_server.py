"""The process that the ranks are forked from: it has everything heavy loaded, and lets no rank outlive the driver.

It also forks the process that keeps the store in which ranks meet, so that the driver need not hold torch's server
thread. It is a single-threaded loop over one socket to the driver. It forks on request, reports each rank's end, and
sends signals to ranks that are still its own (so that a recycled process id is never hit). When the driver's end of
the socket closes, for whatever reason, it kills every rank with all that descends from it, and ends.

    driver -> fork server   {"fork": [rank, …], "folder": path}, with one socket per rank
                            {"signal": number, "pids": [pid, …]}
                            {"fork_server": folder, "first": […]}, with one socket: to another fork server, which this
                            one forks; the new one first calls "module:function" with a text, where "first" says so
    fork server -> driver   {"ready": port of the store}    {"forked": [pid, …]}
                       {"ended": pid, "status": exit code or -signal}
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from .large_pages import collapse

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FDS_AT_MOST = 253  # that one message can carry


def main(control_fd: int, folder: str, preload: Sequence[str]) -> None:
    """Load, then serve until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    gc.disable()  # what is loaded is no garbage
    for name in preload:
        try:
            importlib.import_module(name)
        except Exception:  # a rank that needs the module will say so better
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # keeps the ranks' collectors from touching, and so copying, the pages that they share
    gc.enable()
    collapse()
    _serve(control_fd, folder)


def _serve(control_fd: int, folder: str) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a dead rank leaves behind becomes ours to end
    fork_server = ForkServer(socket.socket(fileno=control_fd))
    try:
        fork_server.serve()
    finally:
        fork_server.end_all()
        shutil.rmtree(folder, ignore_errors=True)


def _call(where: str, text: str) -> None:
    """Change what the ranks will find loaded: ``module:function`` with a text."""
    module, _, name = where.partition(":")
    getattr(importlib.import_module(module), name)(text)
    gc.freeze()


def _prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the control sockets alone end what is left."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class ForkServer:
    """The loop and its table of living ranks."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._ranks: set[int] = set()  # process ids of forked ranks that have not been reaped
        self._forked_servers: set[int] = set()  # likewise, of other fork servers
        self._fds: list[int] = []  # control sockets received and not yet handed to a rank
        self._keeper, self._port = _fork_store_keeper()
        self._text = b""  # received and not yet a whole line
        self._woken, self._wake = os.pipe()
        for fd in (self._woken, self._wake):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer the driver until it closes its end."""
        self._send(ready=self._port)
        while self._keeper:
            ready, _, _ = select.select([self._control.fileno(), self._woken], [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._listen():
                return

    def _listen(self) -> bool:
        try:
            text, fds, _, _ = socket.recv_fds(self._control, 65536, _FDS_AT_MOST)
        except ConnectionError:
            return False
        self._fds += fds
        *lines, self._text = (self._text + text).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(text)

    def _obey(self, request: dict[str, Any]) -> None:
        if "fork" in request:
            ranks = request["fork"]
            lines, self._fds = self._fds[: len(ranks)], self._fds[len(ranks) :]
            pids = [self._fork(rank, request["folder"], line, lines) for rank, line in zip(ranks, lines, strict=True)]
            for line in lines:
                os.close(line)
            self._send(forked=pids)
        elif "fork_server" in request:
            self._fork_server(self._fds.pop(0), request["fork_server"], request["first"])
        else:
            for pid in self._ranks.intersection(request["pids"]):
                self._signal(pid, request["signal"])

    def _fork(self, rank: int, folder: str, control_socket: int, lines: Sequence[int]) -> int:
        pid = _forked(lambda: self._become_rank(rank, folder, control_socket, lines))
        with contextlib.suppress(OSError):  # the child does so too: whoever comes first
            os.setpgid(pid, pid)
        self._ranks.add(pid)
        return pid

    def _become_rank(self, rank: int, folder: str, control_socket: int, lines: Sequence[int]) -> None:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._control.close()
        for line in lines:
            if line != control_socket:
                os.close(line)
        from .worker import serve

        serve(rank, folder, control_socket)

    def _fork_server(self, control_fd: int, folder: str, first: Sequence[str]) -> None:
        """Another fork server, with its own driver's socket, ranks and store."""
        self._forked_servers.add(_forked(lambda: self._become_server(control_fd, folder, first)))
        os.close(control_fd)

    def _become_server(self, control_fd: int, folder: str, first: Sequence[str]) -> None:
        signal.set_wakeup_fd(-1)
        self._control.close()
        for fd in (self._woken, self._wake, *self._fds):
            os.close(fd)
        if first:
            _call(*first)
        _serve(control_fd, folder)

    def _signal(self, pid: int, number: int) -> None:
        """Signal a rank; a kill reaches its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                with contextlib.suppress(PermissionError):
                    os.killpg(pid, number)
            os.kill(pid, number)

    def _reap(self) -> None:
        """Take note of every process that ended, and end what the ended ranks left running."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                break
            pid = ended.si_pid
            if pid in self._ranks:  # not reaped yet, so its group cannot be anybody else's
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if pid == self._keeper:  # without the store no rank can start: end, and let the driver begin anew
                self._keeper = 0
            self._forked_servers.discard(pid)
            if pid in self._ranks:
                self._ranks.remove(pid)
                self._send(ended=pid, status=os.waitstatus_to_exitcode(status))
        if not self._ranks:  # while a rank lives, what we adopted may be a helper that it still uses
            self._end_strays()

    def _end_strays(self) -> None:
        """Kill adopted descendants of ended ranks, such as left their rank's process group."""
        for pid in _children() - self._ranks - self._forked_servers - {self._keeper}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def end_all(self) -> None:
        """Kill every rank with all that descends from it, and wait for that."""
        for pid in self._ranks:
            self._signal(pid, signal.SIGKILL)
        if self._keeper:
            os.kill(self._keeper, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                for pid in _children():  # adopted ones included
                    self._signal(pid, signal.SIGKILL)
                os.waitpid(-1, 0)

    def _send(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # the driver is gone: the next read will tell
            self._control.sendall(json.dumps(message).encode() + b"\n")


def _fork_store_keeper() -> tuple[int, int]:
    """A process that holds the store, and the store's port."""
    parent, listener = os.getpid(), socket.create_server(("127.0.0.1", 0), backlog=1024)
    port: int = listener.getsockname()[1]
    pid = _forked(lambda: _keep_store(listener, port, parent))
    listener.close()
    return pid, port


def _keep_store(listener: socket.socket, port: int, parent: int) -> None:
    import torch.distributed as dist

    store = dist.TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    while os.getppid() == parent and store is not None:
        time.sleep(1.0)


def _forked(act: Callable[[], None]) -> int:
    """The id of a new process that does this and ends, with the present one at the latest."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                act()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _children() -> set[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{threading.get_native_id()}/children") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()
