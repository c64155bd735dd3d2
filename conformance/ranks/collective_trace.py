"""The collective trace of one rank: what it started, in order, kept on file so that it survives the rank.

One JSON list a line, never written in parts:

    ["group", key, name, [global rank, …]]
    ["start", number, group key, op, reduce op, dtype, [shape], source, target, thread]
    ["done", number]
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .outcomes import Event

#: What is noted of a call: op, reduce op, dtype, shape, source, target (see ``Event``).
Facts = tuple[str, str, str, tuple[int, ...], int, int]

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class CollectiveTrace:
    """Writes one rank's collective trace. Any thread may note; a lock keeps numbers and lines in the same order.

    Runs between every two collectives, so it does little: facts stay tuples until somebody asks for events, and what
    ended is written together with what starts next.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.RLock()
        self._groups: dict[Any, tuple[int, str, tuple[int, ...]]] = {}
        self._started: list[tuple[Facts, str, tuple[int, ...], str]] = []  # facts, group, members, thread; by number
        self._done: set[int] = set()
        self._running: dict[int, Any] = {}  # torch Work by number, until it was seen to have ended

    def start(self, group: Any, facts: Facts) -> int:
        """Note a collective that is about to start on ``group``."""
        thread = threading.current_thread().name
        with self._lock:
            lines: list[tuple[Any, ...]] = []
            entry = self._groups.get(group)
            if entry is None:
                entry = self._enter(group)
                lines.append(("group", *entry))
            key, name, ranks = entry
            lines += self._newly_done()
            lines += self._assumed_past((thread, name))
            number = len(self._started)
            self._started.append((facts, name, ranks, thread))
            lines.append(("start", number, key, *facts, thread))
            self._write(lines)
            return number

    def running(self, number: int, work: Any) -> None:
        """Keep the handle of a started collective, to see later whether it ended."""
        with self._lock:
            self._running[number] = work

    def done(self, number: int) -> None:
        """Note that the rank got past a collective."""
        with self._lock:
            self._done.add(number)
            self._write([("done", number)])

    def look(self) -> None:
        """Look which of the running collectives have ended by now."""
        with self._lock:
            self._write(self._newly_done())

    def assume_past(self) -> None:
        """All is over: note as done those whose handles cannot tell (Gloo's reduce-scatter)."""
        with self._lock:
            self._write(self._assumed_past(None))

    def events(self) -> tuple[Event, ...]:
        """Everything noted so far."""
        with self._lock:
            return tuple(
                _event(*started, done=number in self._done) for number, started in enumerate(self._started)
            )

    def close(self) -> None:
        with self._lock:
            self._running.clear()
            os.close(self._fd)

    def _newly_done(self) -> list[tuple[Any, ...]]:
        ended = {number: _ended(work) for number, work in self._running.items()}
        for number, well in ended.items():
            if well is not None:
                del self._running[number]
        well_ended = [number for number, well in ended.items() if well]
        self._done.update(well_ended)
        return [("done", number) for number in well_ended]

    def _assumed_past(self, place: tuple[str, str] | None) -> list[tuple[Any, ...]]:
        """Those whose handles cannot tell count as done once the same thread goes on on the same group."""
        past = [
            number
            for number, work in self._running.items()
            if place in (None, (self._started[number][3], self._started[number][1])) and _cannot_tell(work)
        ]
        for number in past:
            del self._running[number]
        self._done.update(past)
        return [("done", number) for number in past]

    def _enter(self, group: Any) -> tuple[int, str, tuple[int, ...]]:
        ranks = tuple(dist.get_process_group_ranks(group))
        name = "default" if dist.group.WORLD is group else str(group.group_name)
        entry = (len(self._groups), name, ranks)
        self._groups[group] = entry
        return entry

    def _write(self, lines: list[tuple[Any, ...]]) -> None:
        if lines:
            os.write(self._fd, "".join(_encode(line) + "\n" for line in lines).encode())


def _event(facts: Facts, name: str, ranks: tuple[int, ...], thread: str, done: bool) -> Event:
    op, reduce_op, dtype, shape, source, target = facts
    return Event(op, reduce_op, dtype, shape, source, name, thread, done=done, target=target, ranks=ranks)


def _ended(work: Any) -> bool | None:
    """True: it ended well; False: it failed; None: it has not ended."""
    try:
        if not work.is_completed():
            return None
    except Exception:
        return False
    try:
        future = work.get_future()
    except Exception:  # sends and receives have none
        return True
    try:
        if not future.done():  # it is told a moment after the handle
            return None
        future.value()  # raises what went wrong
    except Exception:
        return False
    return True


def _cannot_tell(work: Any) -> bool:
    """Whether a handle has no future, and does not know of its end even after it was waited for."""
    try:
        if not work.is_completed():
            work.get_future()
    except Exception:
        return True
    return False


def read(path: Path) -> tuple[Event, ...]:
    """The collective trace on file; whatever its writer could not finish writing is left out."""
    started: list[tuple[Facts, str, tuple[int, ...], str]] = []
    done: set[int] = set()
    groups: dict[int, tuple[str, tuple[int, ...]]] = {}
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return ()
    for line in lines:
        match json.loads(line):
            case ["group", key, name, ranks]:
                groups[key] = (name, tuple(ranks))
            case ["start", _, key, op, reduce_op, dtype, shape, source, target, thread]:
                started.append(((op, reduce_op, dtype, tuple(shape), source, target), *groups[key], thread))
            case ["done", number]:
                done.add(number)
    return tuple(_event(*one, done=number in done) for number, one in enumerate(started))


_current: CollectiveTrace | None = None


def begin(path: Path) -> None:
    """From now on this process keeps a collective trace."""
    global _current
    _current = CollectiveTrace(path)


def end() -> None:
    global _current
    ours, _current = _current, None
    if ours is not None:
        ours.close()


def current() -> CollectiveTrace | None:
    return _current


def look() -> None:
    """Bring the collective trace, if one is kept, up to date about what has ended."""
    if _current is not None:
        _current.look()


def returned() -> None:
    """The rank's function has returned: it is past everything whose handle cannot tell."""
    if _current is not None:
        _current.look()
        _current.assume_past()


def so_far() -> tuple[Event, ...]:
    """The collectives that this process has started so far."""
    if _current is None:
        return ()
    _current.look()
    return _current.events()
