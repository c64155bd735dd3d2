"""Models on several devices: autograd then goes backward on a thread for each device, all at once.

A reducer's steps are many and must not mix: two threads that both find bucket 3 full would both start it. So on such a
model whatever autograd tells waits its turn. A model on one device has one such thread, and pays nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from .pending_backward import PendingBackward
from .reducer import Reducer


class ReducerOfSeveralDevices(Reducer):
    """Lets one thread at a time into what autograd calls; the rest runs while no backward does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._turn = threading.RLock()  # each of these may call others from inside
        super().__init__(*args, **options)

    def begin(self, pending: PendingBackward) -> None:
        with self._turn:
            super().begin(pending)

    def arrived(self, index: int) -> None:
        with self._turn:
            super().arrived(index)

    def should_be_full(self, place: int) -> None:
        with self._turn:
            super().should_be_full(place)

    def _backward_ended(self) -> None:
        with self._turn:
            super()._backward_ended()

    def _unannounced_ended(self) -> None:
        with self._turn:
            super()._unannounced_ended()
