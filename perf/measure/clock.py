"""Marks in time: wall time and processor time on the host, events on a GPU. Never waits."""

from __future__ import annotations

from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

import torch


class Clock:
    """Collects marks. On a GPU a mark is also an event in the current stream, read only when all is over.

    The processor time is the main thread's, for Gloo's threads are not what is measured. With a GPU it is the whole
    process's: backward, with all that hangs on it, then runs on a thread of the engine's, while the main thread sleeps.
    """

    def __init__(self, device: torch.device) -> None:
        self.wall: list[int] = []
        self.cpu: list[int] = []
        self.events: list[Any] = []
        self._on_device = device.type == "cuda"
        self._cpu_ns = process_time_ns if self._on_device else thread_time_ns

    def mark(self) -> None:
        if self._on_device:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)
        self.wall.append(perf_counter_ns())
        self.cpu.append(self._cpu_ns())

    def spans(self, of: list[int], first: int, last: int, every: int) -> list[int]:
        """From mark ``first`` to mark ``last`` of every group of ``every`` marks, in nanoseconds."""
        return [of[at + last] - of[at + first] for at in range(0, len(of), every)]

    def device_spans(self, every: int) -> list[int]:
        """From the first to the last event of every group of ``every``. The device must have come to rest."""
        events = self.events
        return [
            round(events[at].elapsed_time(events[at + every - 1]) * 1e6) for at in range(0, len(events), every)
        ]
