"""The ledger of one rank: every collective in the order it was started, kept on file so that it survives the rank.

One JSON list a line, each written by a single ``write``:

    ["group", key, name, [global rank, …]]
    ["start", number, group key, op, reduce op, dtype, [shape], source, target, thread]
    ["done", number]
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .outcomes import Event


class Ledger:
    """Writes one rank's ledger. Any thread may note; a lock keeps numbers and lines in the same order."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lock = threading.RLock()
        self._groups: dict[Any, tuple[int, str, tuple[int, ...]]] = {}
        self._running: dict[int, Any] = {}  # torch Work by number, until it was seen to have ended
        self.events: list[Event] = []

    def start(self, group: Any, event: Event) -> int:
        """Note a collective that is about to start on ``group`` (its name and members are filled in here)."""
        with self._lock:
            self.look()
            key, name, ranks = self._groups.get(group) or self._enter(group)
            event = replace(event, group=name, ranks=ranks, thread=threading.current_thread().name)
            self.assume_past(event)
            number = len(self.events)
            self.events.append(event)
            about = (event.op, event.reduce_op, event.dtype, event.shape, event.source, event.target, event.thread)
            self._write("start", number, key, *about)
            return number

    def running(self, number: int, work: Any) -> None:
        """Keep the handle of a started collective, to see later whether it ended."""
        with self._lock:
            self._running[number] = work

    def done(self, number: int) -> None:
        """Note that the rank got past a collective."""
        with self._lock:
            self.events[number] = replace(self.events[number], done=True)
            self._write("done", number)

    def look(self) -> None:
        """Look which of the running collectives have ended by now."""
        with self._lock:
            for number, work in list(self._running.items()):
                ended = _ended(work)
                if ended is not None:
                    del self._running[number]
                    if ended:
                        self.done(number)

    def assume_past(self, later: Event | None = None) -> None:
        """Note those as done whose handles cannot tell (Gloo's reduce-scatter), once the rank went on.

        It went on when the same thread starts a ``later`` collective on the same group, or when all is over (None).
        """
        with self._lock:
            for number, work in list(self._running.items()):
                event = self.events[number]
                went_on = later is None or (event.thread, event.group) == (later.thread, later.group)
                if went_on and _cannot_tell(work):
                    del self._running[number]
                    self.done(number)

    def close(self) -> None:
        with self._lock:
            self._running.clear()
            os.close(self._fd)

    def _enter(self, group: Any) -> tuple[int, str, tuple[int, ...]]:
        ranks = tuple(dist.get_process_group_ranks(group))
        name = "default" if dist.group.WORLD is group else str(group.group_name)
        entry = (len(self._groups), name, ranks)
        self._groups[group] = entry
        self._write("group", *entry)
        return entry

    def _write(self, *line: Any) -> None:
        os.write(self._fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")


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
        if future.done():
            future.value()
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
    """The ledger on file; whatever its writer could not finish writing is left out."""
    events: list[Event] = []
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
                name, ranks = groups[key]
                shape = tuple(shape)
                events.append(Event(op, reduce_op, dtype, shape, source, name, thread, target=target, ranks=ranks))
            case ["done", number]:
                events[number] = replace(events[number], done=True)
    return tuple(events)


_current: Ledger | None = None


def begin(path: Path) -> None:
    """From now on this process keeps a ledger."""
    global _current
    _current = Ledger(path)


def end() -> None:
    global _current
    ours, _current = _current, None
    if ours is not None:
        ours.close()


def current() -> Ledger | None:
    return _current


def look() -> None:
    """Bring the ledger, if one is kept, up to date about what has ended."""
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
    return tuple(_current.events)
