"""A collective in flight: its label, the buffer it fills, and the handle to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

#: Called again and again while a wait lasts; raises when waiting on makes no sense any more (a peer has failed).
Watch = Callable[[], None]

_SPIN_S = 0.0005  # how long a watched wait spins before it begins to sleep between looks
_NAP_S = 0.0002
_WATCH_EVERY_S = 0.05


class Pending:
    """A started collective. The buffer must not be touched between start and ``wait``.

    Exactly one ``Pending`` owns the reference that keeps ``buffer`` alive while the backend works on it.
    """

    __slots__ = ("buffer", "label", "work")

    def __init__(self, label: str, buffer: torch.Tensor, work: Any) -> None:
        self.label = label
        self.buffer = buffer
        self.work = work  # a torch.distributed.Work

    def wait(self, watch: Watch | None = None) -> torch.Tensor:
        """Wait for the end and return the buffer.

        With ``watch`` the wait can be cut short: the watch is called about every 50 ms and may raise. On CUDA the wait
        orders the current stream behind the collective, as torch's own handles do; it does not block the host.
        """
        if watch is not None:
            self._look_out(watch)
        self.work.wait()
        return self.buffer

    def _look_out(self, watch: Watch) -> None:
        start = time.monotonic()
        next_look = start + _WATCH_EVERY_S
        while not self.work.is_completed():
            now = time.monotonic()
            if now >= next_look:
                watch()
                next_look = now + _WATCH_EVERY_S
            if now - start > _SPIN_S:
                time.sleep(_NAP_S)

    def future(self) -> torch.futures.Future:
        """The backend's future of a list holding the buffer."""
        return self.work.get_future()  # type: ignore[no-any-return]
