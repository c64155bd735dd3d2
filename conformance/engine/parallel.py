"""Several checks at a time: threads that run ahead of pytest, since the work itself is done in other processes."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

_NEAR = 100  # calls: so far may one be taken out of its turn


@dataclass(frozen=True)
class Ending:
    """How a call ended: the error that it raised, or None, and how long it took."""

    error: BaseException | None
    seconds: float


def timed(act: Callable[[], object]) -> Ending:
    """Call ``act`` and say how it ended; an interruption from the keyboard goes through."""
    start = time.monotonic()
    try:
        act()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Ending(error, time.monotonic() - start)
    return Ending(None, time.monotonic() - start)


Call = TypeVar("Call", bound=Callable[[], object])


class Turns:
    """So many calls may work at a time. One whose ranks only wait, for a hang to be sure of, lends its turn.

    When its ranks go on, it does not wait for the turn to come back: whoever is next waits a little longer.
    """

    def __init__(self, number: int) -> None:
        self._free = number  # below 0 while calls that had lent theirs go on
        self._changed = threading.Condition()
        self._mine = threading.local()  # lent: whether this thread has a turn, and lends it

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """A turn for the calling thread; waits until there is one."""
        with self._changed:
            while self._free < 1:
                self._changed.wait()
            self._free -= 1
        self._mine.lent = False
        try:
            yield
        finally:
            self.lend(False)
            del self._mine.lent
            self._give(1)

    def lend(self, idle: bool) -> None:
        """Lend the calling thread's turn, or take it back; of no effect on a thread that has none."""
        if getattr(self._mine, "lent", idle) != idle:
            self._mine.lent = idle
            self._give(1 if idle else -1)

    def _give(self, number: int) -> None:
        with self._changed:
            self._free += number
            self._changed.notify()


class Ahead(Generic[Call]):
    """Runs calls on a few threads, in order, and hands out each one's ending when it is asked for.

    A thread takes a near call of the same kind as its last before the next in order: what it keeps for that kind
    (ranks that live) serves again. A call without a kind is taken in its turn. The threads are daemons: an
    interrupted program does not wait for them.
    """

    def __init__(
        self, threads: int, turns: Turns, calls: Mapping[str, Call], kinds: Mapping[str, Hashable] | None = None
    ) -> None:
        self.calls = dict(calls)
        self._turns = turns
        self._kinds = dict(kinds or {})
        self._endings: dict[str, queue.SimpleQueue[Ending]] = {key: queue.SimpleQueue() for key in calls}
        self._waiting = deque(enumerate(calls))
        self._choosing = threading.Lock()
        self._stopped = threading.Event()
        for number in range(min(threads, len(calls))):
            threading.Thread(target=self._work, name=f"check-{number}", daemon=True).start()

    def ending(self, key: str) -> Ending:
        """Wait for one call; it has its own deadlines, so this wait ends."""
        while True:
            try:  # in slices: a wait without end on a lock cannot be interrupted from the keyboard everywhere
                return self._endings[key].get(timeout=0.5)
            except queue.Empty:
                if self._stopped.is_set():
                    raise RuntimeError("the checks were stopped before this one was run") from None

    def stop(self) -> None:
        """Start no further call."""
        self._stopped.set()

    def _work(self) -> None:
        kind: Hashable = None
        while True:
            with self._turns.one():
                key = self._next(kind)
                if key is None:
                    return
                kind = self._kinds.get(key, kind)
                self._endings[key].put(timed(self.calls[key]))

    def _next(self, kind: Hashable) -> str | None:
        """Take the next call, or a near one of the given kind; None if nothing is left to start."""
        with self._choosing:
            if not self._waiting or self._stopped.is_set():
                return None
            first, _ = self._waiting[0]
            near = takewhile(lambda one: one[0] < first + _NEAR, self._waiting)
            alike = (one for one in near if self._kinds.get(one[1], ...) == kind)
            taken = next(alike, self._waiting[0])
            self._waiting.remove(taken)
            return taken[1]
