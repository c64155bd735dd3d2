"""A process as its neighbours see it: on which host it runs, and whether it still does."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

#: states of /proc: a process that is stopped or traced; a zombie, and one that is dead
STOPPED, GONE = "Tt", "ZX"

#: the part of a processor that work takes at least. Threads that only wait for the interpreter look for it two hundred
#: times a second: two of them take half a hundredth, twenty take two
_WORK = 0.05


class Signs(NamedTuple):
    """What is seen of a process from outside."""

    state: str
    used_s: float  # of processor time
    at: float  # on this process's clock


@dataclass(frozen=True)
class Process:
    """Where a rank runs."""

    host: str  # for people
    machine: str  # equal for processes that see each other under /proc and share a network
    pid: int

    @staticmethod
    def own() -> Process:
        """This one."""
        # between two namespaces of networks silence may be the network's
        return Process(socket.gethostname(), "|".join(machine_marks("pid", "net")), os.getpid())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_on_same_machine(self, other: Process) -> bool:
        """Whether both run on one machine, where the one can look at the other."""
        return bool(self.machine) and self.machine == other.machine

    def signs(self) -> Signs:
        """Those of a process on this machine; one that is not there is dead."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2]  # before it stands a name
        except OSError:
            return Signs("X", 0.0, time.monotonic())
        state, *rest = fields.decode().split()
        return Signs(state, (int(rest[10]) + int(rest[11])) / os.sysconf("SC_CLK_TCK"), time.monotonic())


def machine_marks(*namespaces: str) -> list[str]:
    """What tells this machine, and these namespaces on it, from others; nothing where the system has no /proc."""
    marks = []
    with suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        marks.extend(os.readlink(f"/proc/self/ns/{kind}") for kind in namespaces)
    return marks


def has_moved(then: Signs, now: Signs) -> bool:
    """Whether a process that says nothing has computed between two looks, or is being kept from it by others.

    One that computes with the interpreter for long, or gets no processor, is late but not gone.
    """
    if now.state in STOPPED + GONE:
        return False
    return now.state in "RD" or now.used_s - then.used_s > _WORK * (now.at - then.at)
