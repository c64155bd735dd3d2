"""Tells a run that hangs from one that is slow: have its processes done anything lately, and were they allowed to?

Read from ``/proc``; where there is none, nothing is ever found silent and only the deadline applies. A process that is
runnable but gets no processor is not silent, nor is one that waits for a disk.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

LOOK_EVERY_S = 0.25
_LONGEST_STEP_S = 2.0  # between two looks; after a longer one nobody knows what happened meanwhile
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_SILENT_CPU_S = 0.02  # within the window; a sleeping process may wake now and then
_MUTED_TIMES = 3  # polling in naps looks alive: such a run must be without progress this many times longer
_MUTED_SHARE = 0.25  # of a processor, and of the looks that found a process running
MOST_TIMES = 10  # a deadline is put off while a machine is too busy, but not for ever


@dataclass(frozen=True)
class Look:
    """What one look at a run's processes saw."""

    at_s: float
    cpu_s: float  # used so far by all of them together
    busy: bool  # one of their threads runs, wants to run, or waits for a disk
    starved_s: Mapping[str, float] = field(default_factory=dict)  # by process: ready to run so far, but not let


class Allowance:
    """What is left of a deadline if the time in which a run wanted a processor and got none does not count.

    Otherwise a deadline that is generous on a quiet machine would call a run on a busy one hung.
    """

    def __init__(self, start_s: float, limit_s: float, most_times: float = MOST_TIMES) -> None:
        self._end_s = start_s + limit_s
        self._latest_s = start_s + limit_s * most_times
        self._last = Look(start_s, 0.0, False)

    @property
    def deadline(self) -> float:
        return min(self._end_s, self._latest_s)

    def add(self, look: Look) -> None:
        """Put the deadline off by what the process that waited longest has waited since the last look."""
        before = self._last.starved_s
        waited = [waited_s - before.get(pid, 0.0) for pid, waited_s in look.starved_s.items()]
        self._end_s += min(max(waited, default=0.0), look.at_s - self._last.at_s)
        self._last = look


class StallDetector:
    """The looks of one run since something last happened in it."""

    def __init__(self, stall_s: float) -> None:
        self.stall_s = stall_s
        self._looks: deque[Look] = deque()
        self._progress: object = None

    def add(self, look: Look, progress: object) -> None:
        """Take note of a look. ``progress`` is anything that differs when the run has got further."""
        if progress != self._progress:
            self._looks.clear()
            self._progress = progress
        self._looks.append(look)
        while look.at_s - self._looks[0].at_s > self.stall_s * (_MUTED_TIMES + 1):
            self._looks.popleft()

    @property
    def fallen(self) -> bool:
        """Whether the run is silent: nothing at all for ``stall_s``, or next to nothing for three times as long."""
        return self._silent() or self._muted()

    @property
    def resting(self) -> bool:
        """Whether the run has neither worked nor got further since the look before."""
        last = list(self._looks)[-2:]
        return len(last) == 2 and not any(look.busy for look in last) and _cpu_s(last) == 0.0

    def _silent(self) -> bool:
        recent = self._since(self.stall_s)
        return bool(recent) and not any(look.busy for look in recent) and _cpu_s(recent) <= _SILENT_CPU_S

    def _muted(self) -> bool:
        span_s = self.stall_s * _MUTED_TIMES
        recent = self._since(span_s)
        busy = sum(look.busy for look in recent)
        return bool(recent) and busy <= _MUTED_SHARE * len(recent) and _cpu_s(recent) <= _MUTED_SHARE * span_s

    def _since(self, span_s: float) -> list[Look]:
        """The looks of the last ``span_s``; none if they do not reach back that far, or if looking was interrupted."""
        last = self._looks[-1].at_s if self._looks else 0.0
        if not self._looks or last - self._looks[0].at_s < span_s:
            return []
        older = sum(look.at_s <= last - span_s for look in self._looks)
        recent = list(self._looks)[older - 1 :]
        steps = (later.at_s - earlier.at_s for earlier, later in pairwise(recent))
        return [] if any(step > _LONGEST_STEP_S for step in steps) else recent


def _cpu_s(looks: list[Look]) -> float:
    return looks[-1].cpu_s - looks[0].cpu_s


def available() -> bool:
    """Whether this machine tells what its processes do."""
    return Path("/proc/self/stat").exists()


def look(groups: Collection[int], at_s: float) -> Look:
    """Look at all processes of the given process groups, grandchildren included."""
    ticks, busy, starved_s = 0, False, {}
    for pid in _PROCESSES.of(groups):
        if fields := _stat(f"/proc/{pid}/stat"):
            ticks += int(fields[11]) + int(fields[12])
            busy = busy or fields[0] in "RD" or _any_thread_busy(pid)
            starved_s[pid] = _starved_s(pid)
    return Look(at_s, ticks / _TICKS_PER_S, busy, starved_s)


class _Processes:
    """The process group in which each process was when it was first seen: to ask all at every look takes 5 ms."""

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._group_of: dict[str, int] = {}

    def of(self, groups: Collection[int]) -> list[str]:
        """Those in these groups, and their leaders: one may be seen before it has made its group."""
        with self._looking:
            known, there = self._group_of, [pid for pid in os.listdir("/proc") if pid.isdigit()]
            self._group_of = {pid: known[pid] if pid in known else _group_of(pid) for pid in there}
            return [pid for pid, group in self._group_of.items() if group in groups or int(pid) in groups]


_PROCESSES = _Processes()


def _group_of(pid: str) -> int:
    """0 for a process of the kernel's own, and for one that is gone."""
    fields = _stat(f"/proc/{pid}/stat")
    return int(fields[2]) if fields else 0


def _any_thread_busy(pid: str) -> bool:
    return any(fields[:1] in (["R"], ["D"]) for fields in (_stat(f"{thread}/stat") for thread in _threads(pid)))


def _starved_s(pid: str) -> float:
    """How long its threads have been ready to run without a processor; 0 where the kernel does not tell."""
    waited_ns = (_stat(f"{thread}/schedstat")[1:2] for thread in _threads(pid))
    return sum(int(found[0]) for found in waited_ns if found) / 1e9


def _threads(pid: str) -> list[str]:
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _stat(path: str) -> list[str]:
    """The fields after the process's name (which may itself hold spaces and brackets): state, parent, group, …"""
    try:
        with open(path) as file:
            return file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []
