"""Subjects that are wrong on purpose, for the tests of perf: ``perf.tests.planted:lossy`` and others."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import deque
from typing import Any

import torch.distributed as dist

from conformance.subjects import Subject, resolve

_whole = resolve("torch")
_DDP: Any = _whole.DistributedDataParallel


class _Counting(_DDP):
    """Knows how many forwards there were before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._forwards = 0

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        self._forwards += 1
        loss = super().forward(*inputs, **kwargs)
        return self.disturbed(loss) if dist.get_rank() == dist.get_world_size() - 1 else loss

    def disturbed(self, loss: Any) -> Any:
        """What the last rank makes of its loss."""
        raise NotImplementedError


class Lossy(_Counting):
    """Every fifth time, what the last rank has to contribute is lost. All ranks agree on the result."""

    def disturbed(self, loss: Any) -> Any:
        return loss * 0 if self._forwards % 5 == 0 else loss


class Stuck(_Counting):
    """The last rank's third forward never comes back."""

    def disturbed(self, loss: Any) -> Any:
        while self._forwards == 3:
            time.sleep(60)
        return loss


class Failing(_Counting):
    """The last rank's second forward raises."""

    def disturbed(self, loss: Any) -> Any:
        if self._forwards == 2:
            raise RuntimeError("planted: the second forward fails")
        return loss


class Crashing(_Counting):
    """The last rank's process ends in the third forward as by a fault of memory."""

    def disturbed(self, loss: Any) -> Any:
        if self._forwards == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        return loss


class Unsynced(_DDP):
    """Every rank starts from its own weights. Where these are equal by luck, all comes out right."""

    def __init__(self, module: Any, *args: Any, **kwargs: Any) -> None:
        mine = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        super().__init__(module, *args, **kwargs)
        module.load_state_dict(mine)


class Stale(_DDP):
    """Forwards leave the buffers of every rank alone. The weights come out right."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, broadcast_buffers=False)


class Slow(_DDP):
    """Every rank spends a tenth of an iteration more on its processor, in the forward."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._last_end = 0  # of this thread's processor time, when the forward before was about to begin its work
        self._iterations: deque[int] = deque(maxlen=9)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        began = time.thread_time_ns()
        if self._last_end:
            self._iterations.append(began - self._last_end)
            while time.thread_time_ns() - began < statistics.median(self._iterations) / 10:
                pass
        self._last_end = time.thread_time_ns()
        return super().forward(*inputs, **kwargs)


def _subject(name: str, ddp: type[Any]) -> Subject:
    return Subject(name, "planted", {**_whole.names, "DistributedDataParallel": ddp})


lossy, stuck, failing = _subject("lossy", Lossy), _subject("stuck", Stuck), _subject("failing", Failing)
crashing = _subject("crashing", Crashing)
slow, unsynced, stale = _subject("slow", Slow), _subject("unsynced", Unsynced), _subject("stale", Stale)
