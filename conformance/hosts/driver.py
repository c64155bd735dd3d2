"""The driver's end: starts the switch in namespaces of its own, runs commands on hosts, cuts and slows links."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .network import Network

_PR_SET_PDEATHSIG = 1
_SET_UP_LIMIT_S = 60.0
_ANSWER_LIMIT_S = 30.0
_PORT = 29577  # on the first host, in a namespace that nobody else has

#: for the ranks: the interface of their host, one thread each, and no questions to a name server that is not there
_ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1",
    "RES_OPTIONS": "attempts:0",
}  # fmt: skip


class HostsFailed(RuntimeError):
    """The hosts could not be set up, or the process that owns them has ended."""


def unavailable() -> str:
    """Why there can be no hosts on this machine; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    missing = [name for name in ("ip", "tc", "unshare", "mount") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not found: install iproute2 and util-linux"
    if subprocess.run([*_unshare(), "true"], capture_output=True, timeout=30, check=False).returncode:
        return "this process may not make network namespaces: neither root nor user namespaces are to be had"
    return ""


def _unshare() -> list[str]:
    """Namespaces for network, mounts and processes; with users mapped where this is not root."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _die_with_the_driver() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Hosts:
    """A network that exists as long as this context is entered. Not for use by several threads."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._process: subprocess.Popen[str] | None = None
        self._logs: tempfile.TemporaryDirectory[str] | None = None  # torchrun's, which leaves a folder on each host
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._ended: dict[int, int] = {}  # exit statuses by process id, as the switch tells them

    def __enter__(self) -> Hosts:
        why = unavailable()
        if why:
            raise HostsFailed(f"no hosts here: {why}")
        output = os.dup(1)  # for what runs on the hosts; the switch's own standard output is its answers
        what = [json.dumps(asdict(self.network)), str(output)]
        command = [*_unshare(), sys.executable, "-m", f"{__package__}.switch", *what]
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
            preexec_fn=_die_with_the_driver, start_new_session=True, pass_fds=[output],
        )  # fmt: skip
        os.close(output)
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        try:
            self._answer("ready", _SET_UP_LIMIT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process on every host; the kernel removes the network."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._logs is not None:
            self._logs.cleanup()

    # -- running

    def start(self, host: int, command: Sequence[str], environment: Mapping[str, str] = {}) -> int:
        """Start a command on a host; its output is this process's own. Returns its process id there."""
        made = {**os.environ, **_ENVIRONMENT, **environment}
        self._tell({"start": host, "command": list(command), "environment": made, "folder": os.getcwd()})
        return int(self._answer("started")["started"])

    def wait(self, pids: Sequence[int], limit_s: float | None = None) -> dict[int, int]:
        """Exit statuses of started processes, as far as they have ended within the limit."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while any(pid not in self._ended for pid in pids):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            try:
                self._take(self._answers.get(timeout=1.0 if left is None else min(left, 1.0)))
            except queue.Empty:
                continue
        return {pid: self._ended[pid] for pid in pids if pid in self._ended}

    def torchrun(self, script: Sequence[str], ranks_a_host: int = 1) -> int:
        """Run what torchrun would be given on all hosts, one agent on each; 0, or the first status that is not."""
        statuses = self.wait(self.launch(script, ranks_a_host))
        return next((status for status in statuses.values() if status), 0)

    def launch(self, script: Sequence[str], ranks_a_host: int = 1) -> list[int]:
        """Start what ``torchrun`` runs and wait for nothing; the process ids of torchrun's agents."""
        network = self.network
        self._logs = self._logs or tempfile.TemporaryDirectory(prefix="hosts-")
        agents = []
        for host in range(network.hosts):
            where = ["--nnodes", str(network.hosts), "--node-rank", str(host), "--nproc-per-node", str(ranks_a_host)]
            where += ["--master-addr", network.addresses[0], "--master-port", str(_PORT)]
            where += ["--log-dir", self._logs.name]
            agents.append(self.start(host, [sys.executable, "-m", "torch.distributed.run", *where, *script]))
        return agents

    # -- disturbing

    def cut(self, host: int) -> None:
        """Take a host's cable out; packets under way are lost."""
        self._do({"link": host, "up": False})

    def heal(self, host: int) -> None:
        """Put it in again."""
        self._do({"link": host, "up": True})

    def limit(self, host: int, rate_bps: int) -> None:
        """Give a host's link another rate."""
        self._do({"link": host, "rate_bps": rate_bps})

    def signal(self, host: int, number: int) -> None:
        """Send a signal to all that was started on a host: SIGSTOP freezes it, SIGKILL is a power failure."""
        self._do({"host": host, "signal": int(number)})

    # -- the switch

    def _do(self, wish: Mapping[str, Any]) -> None:
        self._tell(wish)
        self._answer("done")

    def _tell(self, wish: Mapping[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            raise HostsFailed("these hosts are not entered: use them inside `with Hosts(...) as hosts`")
        try:
            self._process.stdin.write(json.dumps(wish) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HostsFailed("the process that owns the hosts has ended") from error

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({"failed": "the process that owns the hosts has ended"})

    def _answer(self, wanted: str, limit_s: float = _ANSWER_LIMIT_S) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                said = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise HostsFailed(f"the process that owns the hosts did not answer within {limit_s:g} s") from None
            if wanted in said:
                return said
            self._take(said)

    def _take(self, said: Mapping[str, Any]) -> None:
        if "failed" in said:
            raise HostsFailed(str(said["failed"]))
        if "ended" in said:
            self._ended[said["ended"]] = said["status"]
