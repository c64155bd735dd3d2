"""The handle that a notification returns: waits for the number of active ranks, and looks out for failed peers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..comm.pending import Pending, Watch


class Handle(dist.Work):
    """A ``torch.distributed.Work`` whose result is one tensor of one element: the number of active ranks (JOIN-031).

    ``wait`` raises as soon as a peer is known to have failed. Where the number comes with a whole message, ``number``
    finds it in there, and ``seen`` is told that the caller waits, so that the context can look at the rest; both may
    raise what the message says.
    """

    def __init__(
        self,
        pending: Pending,
        watch: Watch,
        seen: Callable[[], None] | None = None,
        number: Callable[[torch.Tensor], torch.Tensor] = lambda buffer: buffer,
    ) -> None:
        super().__init__()
        self._pending = pending
        self._watch = watch
        self._seen = seen
        self._number = number
        self._arrived = False  # whether a wait has ended well

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the number; a timeout that is given is the backend's to keep."""
        if timeout is not None:
            return bool(self._pending.work.wait(timeout))
        self._pending.wait(self._watch)
        self._arrived = True
        if self._seen is not None:
            self._seen()
        return True

    def result(self) -> list[torch.Tensor]:
        """The number of active ranks as a tensor of one element, in a list as torch's handles give it. Waits."""
        self.wait()
        return [self._number(self._pending.buffer)]

    def is_completed(self) -> bool:
        return bool(self._pending.work.is_completed())

    def is_success(self) -> bool:
        try:
            return bool(self._pending.work.is_success())
        except NotImplementedError:  # the works of NCCL are not to be asked; a wait for one that failed raises
            return self._arrived and self.is_completed()

    def exception(self) -> Any:
        try:
            return self._pending.work.exception()
        except TypeError:  # torch 2.11 cannot hand one over, not even none
            if self.is_success():
                return None
            raise

    def synchronize(self) -> None:
        self._pending.work.synchronize()

    def get_future(self) -> torch.futures.Future:
        """A future of what ``result`` gives."""
        pending, number = self._pending, self._number

        def found(whole: torch.futures.Future) -> list[torch.Tensor]:
            pending.take(whole.value())  # a group written in Python may have a future of another kind
            return [number(pending.buffer)]

        return pending.future().then(found)
