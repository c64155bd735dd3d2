"""The fault of a cell on its rank: when it is due, and what it does there."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from ..ranks.files import write_whole
from .cells import OF_A_COLLECTIVE, SHADOWING, Cell
from .promises import SHORT_STOP_S

FAULT, STORE = "fault.json", "store.json"
ASKED = "asked.json"  # the driver is to do something to this rank's host, and writes FAULT when that is done
_ANSWER_S = 20.0
_ROOM_BYTES = 32 * 2**20  # that is left to a process whose memory is exhausted
_WANTED_BYTES = 2**30


class Planted(RuntimeError):
    """What a rank raises that was told to raise."""


def write(path: Path, told: Any) -> None:
    """Write whole or not at all: another process may look at any time."""
    write_whole(path, json.dumps(told).encode())


def read(path: Path) -> Any:
    """What was written; None if nothing was."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


class Fault:
    """Follows the program of one rank, and strikes when it comes to the point for the first time."""

    def __init__(self, cell: Cell, rank: int, folder: Path) -> None:
        self._cell, self._point = cell, cell.where
        self.folder = folder
        self._armed = rank == cell.rank
        self._met = 0
        self.phase, self.iteration = "", 0
        self.struck = False

    def enter(self, phase: str, iteration: int | None = None) -> None:
        """The program begins with something else."""
        self.phase = phase
        self._met = 0
        if iteration is not None:
            self.iteration = iteration

    def at(self, name: str) -> None:
        """The program is at a point in the user's code."""
        if not self._point.is_collective and name == self._point.name and self._due():
            self._strike()

    def asked(self, facts: Any) -> str:
        """What to do to a collective of this process: a fault of ``cells.OF_A_COLLECTIVE``, or nothing."""
        op, _, dtype, shape = facts[:4]
        if not (self._point.is_collective and self._due()):
            return ""
        if not self._point.meets(op, dtype, math.prod(shape)):
            return ""
        self._met += 1
        if self._met != self._point.number:
            return ""
        self._strike()
        return self._cell.kind if self._cell.kind in OF_A_COLLECTIVE else ""

    def _due(self) -> bool:
        if not self._armed:
            return False
        if self._cell.role == SHADOWING:
            return self.phase == "joined"
        wanted = self._point.iteration if self.phase not in ("joined", "consolidation", "exit") else self.iteration
        return self.phase in self._point.phase.split("|") and self.iteration == wanted

    def _strike(self) -> None:
        self._armed, self.struck = False, True
        if self._cell.on_hosts:
            self._ask_the_driver()
            return
        write(self.folder / FAULT, {"at": time.monotonic(), "pid": os.getpid()})
        act = _ACTS.get(self._cell.kind)
        if act is not None:
            act(self.folder)

    def _ask_the_driver(self) -> None:
        write(self.folder / ASKED, True)
        end = time.monotonic() + _ANSWER_S
        while read(self.folder / FAULT) is None and time.monotonic() < end:
            time.sleep(0.002)


# -- what happens


def _raise(_folder: Path) -> None:
    raise Planted("a bad batch, planted on this rank")


def _exit(_folder: Path) -> None:
    os._exit(3)


def _killed(_folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stopped(_folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _stopped_for_a_while(_folder: Path) -> None:
    awake = f"sleep {SHORT_STOP_S:g}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", awake], stdin=subprocess.DEVNULL, start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def _without_memory(_folder: Path) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ROOM_BYTES, hard))
    torch.empty(_WANTED_BYTES, dtype=torch.uint8)


def _without_store(folder: Path) -> None:
    os.kill(read(folder / STORE)["pid"], signal.SIGKILL)


_ACTS = {
    "raise": _raise, "exit": _exit, "SIGKILL": _killed, "stopped for ever": _stopped,
    "stopped for 1 s": _stopped_for_a_while, "memory exhausted": _without_memory, "store gone": _without_store,
}  # fmt: skip
