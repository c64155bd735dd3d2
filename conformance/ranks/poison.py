"""Poison: between start and wait of a collective its buffers hold NaN, so that who reads too early fails his check.

    start  the collective works on a copy; a buffer that it will fill is filled with poison, one that it reads is kept
    wait   the result is put where it belongs; if somebody has written there meanwhile, that is noted, and told at the
           end of the rank's function as a failed assertion

A buffer that a rank only sends may be read meanwhile, and must not be written to. Integers have no NaN: they get a
number that is easily noticed. The recording group calls ``start`` for every collective while ``poisoning`` lasts (a
trace need not be kept). On an accelerator all of it happens on the stream that is current at start and at wait, as
with the collective itself, but looking for writes holds the host up.

Not poisoned: sparse tensors, collectives without a handle, and those whose tensors come as keywords.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# what a collective does with each of its positional arguments that holds tensors: fills it, reads it, or both
_FILLS, _READS, _BOTH, _ROOT_READS, _ROOT_FILLS = "fills", "reads", "both", "root reads", "root fills"
_PAIR = (_FILLS, _READS)
_ROLES: dict[str, tuple[str, ...]] = {
    "allreduce": (_BOTH,), "allreduce_coalesced": (_BOTH,), "broadcast": (_ROOT_READS,), "reduce": (_ROOT_FILLS,),
    "send": (_READS,), "recv": (_FILLS,), "recv_anysource": (_FILLS,),
    **dict.fromkeys((
        "allgather", "allgather_coalesced", "_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced",
        "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "gather", "scatter", "alltoall",
        "alltoall_base", "all_to_all_single",
    ), _PAIR),
}  # fmt: skip
_NUMBER = 0x5A  # fits every integer type


class Flight:
    """The buffers of one collective until it has ended.

    ``filled`` holds each with the copy on which the collective works, ``kept`` with what it held at the start (a
    collective may use the copy of what it reads as scratch), ``copies`` every copy with the buffer that it stands for.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.filled: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._landed = False
        self._lock = threading.Lock()

    def boarded(self, value: Any, role: str) -> Any:
        """An argument with copies in place of its tensors."""
        if isinstance(value, (list, tuple)):
            return type(value)(self.boarded(each, role) for each in value)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not value.numel():
            return value
        copy = value.data.clone()
        self.copies.append((copy, value))
        if role == _READS:
            self.kept.append((value, copy.clone()))
        else:
            self.filled.append((value, copy))
        return copy

    def take_off(self) -> None:
        """The collective has started on the copies."""
        ours = {buffer.untyped_storage().data_ptr() for buffer, _ in self.filled}
        self.kept = [pair for pair in self.kept if pair[0].untyped_storage().data_ptr() not in ours]  # in place
        for buffer, _ in self.filled:
            buffer.data.fill_(_poison(buffer))

    def land(self) -> None:
        """The collective has ended well: see whether the buffers are as they were left, and hand out the results."""
        with self._lock:
            if self._landed:
                return
            self._landed = True
            whole = all(_is_poisoned(buffer.data) for buffer, _ in self.filled)
            if not whole or not all(_is_same(buffer.data, copy) for buffer, copy in self.kept):
                _written.append(self.label)
            for buffer, copy in self.filled:
                buffer.data.copy_(copy)


class PoisonedWork(dist.Work):
    """The handle of a collective whose results arrive when somebody has waited, or has seen that it has ended."""

    def __init__(self, real: Any, flight: Flight) -> None:
        super().__init__()
        self.real = real
        self._flight = flight

    def wait(self, timeout: timedelta | None = None) -> bool:
        well = self.real.wait(timeout) if timeout else self.real.wait()
        self._flight.land()
        return bool(well)

    def synchronize(self) -> None:
        self.real.synchronize()
        self._flight.land()

    def is_completed(self) -> bool:
        ended = bool(self.real.is_completed())
        if ended:
            with contextlib.suppress(Exception):  # it failed: nothing arrives, and whoever waits is told
                self.wait()
        return ended

    def is_success(self) -> bool:
        return bool(self.real.is_success())

    def exception(self) -> Any:
        return self.real.exception()

    def source_rank(self) -> int:
        return int(self.real.source_rank())

    def result(self) -> list[torch.Tensor]:
        self._flight.land()
        return [buffer for buffer, _ in self._flight.filled]

    def get_future(self) -> Any:
        return self.real.get_future().then(self._handed_out)

    def _handed_out(self, future: Any) -> Any:
        """The value of the collective's own future, with our buffers in place of the copies."""
        value = future.value()
        self._flight.land()
        copies = self._flight.copies
        return _mapped(value, lambda tensor: next((own for copy, own in copies if _is_whole(copy, tensor)), tensor))


def start(group: dist.ProcessGroup, method: str, label: str, root: int, args: tuple[Any, ...], kwargs: Any) -> Any:
    """Start a collective of ``group``; poisoned, if that is on."""
    call = getattr(group, method)
    roles = _ROLES.get(method, ()) if _on else ()
    flight = Flight(label)
    here = [_here(role, group.rank() == root) for role in roles]
    copies = [flight.boarded(value, role) for value, role in zip(args, here, strict=False)]
    real = call(*copies, *args[len(copies) :], **kwargs)
    if not flight.filled and not flight.kept:
        return real
    if real is None:  # it was a blocking one
        for buffer, copy in flight.filled:
            buffer.data.copy_(copy)
        return None
    flight.take_off()
    return PoisonedWork(real, flight)


def _here(role: str, is_root: bool) -> str:
    if role == _ROOT_READS:
        return _READS if is_root else _FILLS
    if role == _ROOT_FILLS:
        return _BOTH if is_root else _READS
    return role


def _poison(buffer: torch.Tensor) -> Any:
    if buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        return float("nan")
    return True if buffer.dtype == torch.bool else _NUMBER


def _is_poisoned(buffer: torch.Tensor) -> bool:
    if buffer.dtype.is_floating_point or buffer.dtype.is_complex:
        return bool(buffer.isnan().all())
    return bool((buffer == _poison(buffer)).all())


def _is_same(buffer: torch.Tensor, copy: torch.Tensor) -> bool:
    return bool(((buffer == copy) | ((buffer != buffer) & (copy != copy))).all())


def _is_whole(copy: torch.Tensor, tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.data_ptr() == copy.data_ptr() and tensor.shape == copy.shape


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(each, change) for each in value)
    return change(value)


_on = False
_written: list[str] = []


@contextlib.contextmanager
def poisoning() -> Iterator[None]:
    """While this lasts, every collective of a recording group is poisoned."""
    global _on
    _on = True
    _written.clear()
    try:
        yield
    finally:
        _on = False


def ensure_untouched() -> None:
    """Raise an AssertionError if anybody wrote into a buffer in flight."""
    if _written:
        each = "; ".join(dict.fromkeys(_written))
        raise AssertionError(f"written to between start and wait: the buffer of {each}")
