"""A process group that leaves every collective to the backend but the one that a fault is planted in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..ranks.recording import METHODS, RecordingGroup, facts_of, tensors_in
from .injecting import Fault

#: A collective that is about to start: the backend's method, and what it is called with.
Start = Callable[..., Any]

_EXTRA = 8  # elements of a collective of another size
_SAME_WIDTH = {
    torch.float32: torch.int32, torch.int32: torch.float32, torch.float64: torch.int64, torch.int64: torch.float64,
    torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.uint8: torch.int8,
}  # fmt: skip
_SWAP_S = 0.3  # a collective that is held back goes by then, whatever else comes


current: Fault | None = None  # of this process


class FutureWork(dist.Work):
    """The handle of a collective that is held back or left out: it ends with a future."""

    def __init__(self, future: torch.futures.Future[Any]) -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta | None = None) -> bool:
        end = time.monotonic() + timeout.total_seconds() if timeout else float("inf")
        while not self._future.done():
            if time.monotonic() > end:
                raise RuntimeError("a wait for the collective has run out")
            time.sleep(0.001)
        self._future.value()  # raises what went wrong
        return True

    def is_completed(self) -> bool:
        return self._future.done()

    def is_success(self) -> bool:
        return self._future.done()

    def get_future(self) -> Any:
        return self._future

    def exception(self) -> Any:
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self._future.value()  # type: ignore[no-any-return]


class FaultyGroup(RecordingGroup):
    """Asks the current fault about each collective."""

    held: Callable[[], None] | None = None  # starts the collective that is held back until the next one has started


def _asking(method: str, op: str, subject: int, number_means: str) -> Callable[..., Any]:
    def call(self: FaultyGroup, *args: Any, **kwargs: Any) -> Any:
        start = getattr(self.inner, method)
        what = current.asked(facts_of(op, subject, number_means, args, kwargs)) if current is not None else ""
        if what:
            return _CHANGES[what](self, start, args, kwargs, max(subject, 0))
        work = start(*args, **kwargs)
        _release(self)
        return work

    call.__name__ = method
    return call


for _method, _about in METHODS.items():
    if hasattr(dist.ProcessGroup, _method):
        setattr(FaultyGroup, _method, _asking(_method, *_about))


def _release(group: FaultyGroup) -> None:
    held, group.held = group.held, None
    if held is not None:
        held()


def _corrupted(_group: FaultyGroup, start: Start, args: Any, kwargs: Any, _subject: int) -> Any:
    """What this rank gives is wrong; where it gives nothing, what it gets."""
    root = next((getattr(value, "rootRank", None) for value in args if hasattr(value, "rootRank")), None)
    if root is not None and root != _group.rank():
        work = start(*args, **kwargs)
        work.wait()
        _corrupt(args)
        return work
    _corrupt(args)
    return start(*args, **kwargs)


def _corrupt(args: Any) -> None:
    for tensor in tensors_in(args):
        if tensor.numel():
            tensor.detach().view(-1)[:1].add_(1 if tensor.dtype == torch.uint8 else 4096)


def _skipped(_group: FaultyGroup, _start: Start, args: Any, _kwargs: Any, _subject: int) -> Any:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(list(tensors_in(args)))
    return FutureWork(future)


def _repeated(_group: FaultyGroup, start: Start, args: Any, kwargs: Any, _subject: int) -> Any:
    again = _mapped(args, torch.clone)
    work = start(*args, **kwargs)
    _kept.append((start(*again, **kwargs), again))
    return work


def _swapped(group: FaultyGroup, start: Start, args: Any, kwargs: Any, _subject: int) -> Any:
    """Start this one after the next one; whoever waits for it meanwhile waits for a future."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    once = threading.Lock()

    def begin() -> None:
        if once.acquire(blocking=False):
            work = start(*args, **kwargs)
            threading.Thread(target=lambda: _hand_on(work, future, args), daemon=True).start()

    group.held = begin
    timer = threading.Timer(_SWAP_S, begin)
    timer.daemon = True
    timer.start()
    return FutureWork(future)


def _hand_on(work: Any, future: torch.futures.Future[Any], args: Any) -> None:
    try:
        work.wait()
        future.set_result(list(tensors_in(args)))
    except Exception as error:
        future.set_exception(error)


def _another_size(_group: FaultyGroup, start: Start, args: Any, kwargs: Any, subject: int) -> Any:
    def longer(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.detach().reshape(-1), tensor.new_zeros(_EXTRA)])

    return _started_with(longer, start, args, kwargs, subject)


def _another_dtype(_group: FaultyGroup, start: Start, args: Any, kwargs: Any, subject: int) -> Any:
    return _started_with(lambda tensor: tensor.detach().view(_SAME_WIDTH[tensor.dtype]), start, args, kwargs, subject)


def _started_with(
    change: Callable[[torch.Tensor], torch.Tensor], start: Start, args: Any, kwargs: Any, subject: int
) -> Any:
    changed = (*args[:subject], _mapped(args[subject], change), *args[subject + 1 :])
    _kept.append(changed)
    return start(*changed, **kwargs)


_kept: list[Any] = []  # handles and buffers that nobody else keeps
_CHANGES: dict[str, Callable[[FaultyGroup, Start, Any, Any, int], Any]] = {
    "corrupted": _corrupted, "skipped": _skipped, "repeated": _repeated, "swapped": _swapped,
    "another size": _another_size, "another dtype": _another_dtype,
}  # fmt: skip


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    return type(value)(_mapped(each, change) for each in value) if isinstance(value, (list, tuple)) else value
