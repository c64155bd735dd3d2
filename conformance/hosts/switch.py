"""The process that owns the network: builds it in namespaces of its own, then serves the driver until that is gone.

``python -m conformance.hosts.switch NETWORK FD`` (JSON; where commands write their output), started by ``driver.Hosts``
under ``unshare``: whatever becomes of this process, the kernel takes namespaces, links and every process in them down
with it. One JSON line each way:

    driver -> switch   {"start": host, "command": […], "environment": {…}, "folder": path}
                       {"link": host, "up": bool}   {"link": host, "rate_bps": n}
                       {"signal": number, "host": host}
    switch -> driver   {"ready": true} or {"failed": text}
                       {"started": process id}   {"done": true}
                       {"ended": process id, "host": host, "status": n}
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from . import relay
from .network import Network

_BURST = "256kb"  # of the token bucket: some packets at once, far less than a gradient bucket
_QUEUE = "100ms"  # how long a packet may wait for tokens before it is dropped


class SetUpFailed(RuntimeError):
    """Something that the network needs was refused, as a rule a command of iproute2."""


def _ip(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise SetUpFailed(f"`{' '.join(words)}` failed: {done.stderr.strip() or done.returncode}")


class Switch:
    """Builds the network and obeys the driver."""

    def __init__(self, network: Network, output: int) -> None:
        self._network = network
        self._output = output
        self._speaking = threading.Lock()
        self._running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}  # by process id: host and process
        self._relay: relay.Relay | None = None  # where links are late and the kernel cannot make them so

    # -- building

    def build(self) -> None:
        """Namespaces h0, h1, … with an eth0 each, behind bridges in the namespace of this process."""
        network = self._network
        _ip("mount", "-t", "tmpfs", "tmpfs", "/run")  # where ip keeps the names of namespaces
        self._name_the_hosts()
        _ip("ip", "link", "set", "lo", "up")
        for rack in range(network.racks):
            _ip("ip", "link", "add", f"rack{rack}", "type", "bridge")
            _ip("ip", "link", "set", f"rack{rack}", "up")
        if network.racks > 1:
            self._connect_racks()
        if network.delay_s and not self._has_netem():
            why = relay.unavailable()
            if why:
                raise SetUpFailed(f"a delay needs the kernel's netem, which is missing, or TAP devices, but {why}")
            self._relay = relay.Relay(network.delay_s)
        for host, address in enumerate(network.addresses):
            self._attach(host, address)
        if self._relay is not None:
            self._relay.start()

    @staticmethod
    def _has_netem() -> bool:
        try:
            _ip("tc", "qdisc", "replace", "dev", "lo", "root", "netem", "delay", "1us")
        except SetUpFailed:
            return False
        _ip("tc", "qdisc", "del", "dev", "lo", "root")
        return True

    def _name_the_hosts(self) -> None:
        """An /etc/hosts of our own: torch looks up the name behind every address that connects."""
        names = ["127.0.0.1 localhost", f"127.0.0.1 {platform.node()}"]
        for host, address in enumerate(self._network.addresses):
            names += [f"{address} host{host}", f"::ffff:{address} host{host}"]
        Path("/run/hosts").write_text("\n".join(names) + "\n")
        _ip("mount", "--bind", "/run/hosts", "/etc/hosts")

    def _connect_racks(self) -> None:
        _ip("ip", "link", "add", "middle", "type", "bridge")
        _ip("ip", "link", "set", "middle", "up")
        for rack in range(self._network.racks):
            _ip("ip", "link", "add", f"up{rack}", "type", "veth", "peer", "name", f"down{rack}")
            for end, bridge in ((f"up{rack}", f"rack{rack}"), (f"down{rack}", "middle")):
                _ip("ip", "link", "set", end, "master", bridge)
                _ip("ip", "link", "set", end, "up")
                self._shape(["tc"], end, self._network.uplink_bps or self._network.rate_bps, 0.0)

    def _attach(self, host: int, address: str) -> None:
        inside = ["ip", "netns", "exec", f"h{host}"]
        _ip("ip", "netns", "add", f"h{host}")
        if self._relay is None:
            _ip("ip", "link", "add", f"port{host}", "type", "veth", "peer", "name", "eth0", "netns", f"h{host}")
        else:
            self._relay.connect(f"port{host}", f"far{host}")
            _ip("ip", "link", "set", f"far{host}", "netns", f"h{host}", "name", "eth0")
        _ip("ip", "link", "set", f"port{host}", "master", f"rack{self._network.rack_of(host)}")
        _ip("ip", "link", "set", f"port{host}", "up")
        _ip(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip(*inside, "ip", "link", "set", device, "up")
        self._shape_link(host, self._network.rate_bps)

    def _shape_link(self, host: int, rate_bps: int) -> None:
        """Both directions of a host's link."""
        delay_s = self._network.delay_s if self._relay is None else 0.0
        self._shape(["tc"], f"port{host}", rate_bps, delay_s)
        self._shape(["ip", "netns", "exec", f"h{host}", "tc"], "eth0", rate_bps, delay_s)

    @staticmethod
    def _shape(tc: list[str], device: str, rate_bps: int, delay_s: float) -> None:
        limit = ["rate", f"{rate_bps}bit", "burst", _BURST, "latency", _QUEUE]
        _ip(*tc, "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf", *limit)
        if delay_s:
            late = ["netem", "delay", f"{delay_s * 1e6:.0f}us", "limit", "100000"]
            _ip(*tc, "qdisc", "replace", "dev", device, "parent", "1:", "handle", "10:", *late)

    # -- serving

    def serve(self) -> None:
        """Obey until the driver closes its end."""
        self._say(ready=True)
        for line in sys.stdin:
            try:
                self._obey(json.loads(line))
            except (SetUpFailed, OSError) as error:
                self._say(failed=str(error))

    def _obey(self, wish: dict[str, Any]) -> None:
        if "start" in wish:
            self._start(wish["start"], wish["command"], wish["environment"], wish["folder"])
        elif "link" in wish:
            if "up" in wish:
                _ip("ip", "link", "set", f"port{wish['link']}", "up" if wish["up"] else "down")
            if "rate_bps" in wish:
                self._shape_link(wish["link"], wish["rate_bps"])
            self._say(done=True)
        else:
            for host, process in list(self._running.values()):
                if host == wish["host"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, wish["signal"])
            self._say(done=True)

    def _start(self, host: int, command: list[str], environment: dict[str, str], folder: str) -> None:
        process = subprocess.Popen(
            ["ip", "netns", "exec", f"h{host}", *command], env=environment, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=self._output, start_new_session=True,
        )  # fmt: skip
        self._running[process.pid] = (host, process)
        self._say(started=process.pid)
        threading.Thread(target=self._await, args=(host, process), daemon=True).start()

    def _await(self, host: int, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        self._say(ended=process.pid, host=host, status=status)

    def _say(self, **words: Any) -> None:
        with self._speaking, contextlib.suppress(OSError):
            sys.stdout.write(json.dumps(words) + "\n")
            sys.stdout.flush()


def main(network: str, output: str) -> int:
    """Build and serve; the exit status is only for whoever starts this by hand."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    switch = Switch(Network(**json.loads(network)), int(output))
    try:
        switch.build()
    except (SetUpFailed, OSError, subprocess.TimeoutExpired) as error:
        print(json.dumps({"failed": str(error)}), flush=True)
        return 1
    switch.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
