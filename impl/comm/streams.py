"""Streams of accelerators, and nothing at all on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch

#: One stream per device, for copies of control messages to the host. Made on first use, never changed.
_reading: dict[torch.device, Any] = {}
#: One stream per device, for inputs on their way from the host. Likewise.
_bringing: dict[torch.device, Any] = {}


@cache
def is_accelerated(device: torch.device) -> bool:
    """Whether work on this device is queued on streams, so that waiting for it need not block the host."""
    return device.type not in ("cpu", "meta")


def reading(device: torch.device) -> AbstractContextManager[Any]:
    """Make a stream of its own current on an accelerator, for a copy to the host that must not wait for computation."""
    return torch.get_device_module(device).stream(_of(_reading, device))  # type: ignore[no-any-return]


def brought_to(device: torch.device, tensor: torch.Tensor, *, side_stream: bool) -> torch.Tensor:
    """A tensor on ``device``, if need be copied.

    With ``side_stream`` what comes from the host is copied on a stream of its own, so that the copy does not wait for
    what is queued on the device; the current stream waits for the copy. The host waits for it, too: a program may write
    its next input into the same pinned memory.
    """
    own_stream = side_stream and is_accelerated(device) and not is_accelerated(tensor.device)
    if not own_stream or tensor.layout is not torch.strided:  # whose memory nobody can keep for a stream
        return tensor.to(device)
    module = torch.get_device_module(device)
    stream, current = _of(_bringing, device), module.current_stream(device)
    with module.stream(stream):
        copy = tensor.to(device)
    current.wait_stream(stream)
    copy.record_stream(current)  # its memory belongs to the other stream
    return copy


def _of(known: dict[torch.device, Any], device: torch.device) -> Any:
    if device not in known:
        known[device] = torch.get_device_module(device).Stream(device=device)
    return known[device]


def tensor_on(device: torch.device, values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of the host as a tensor on a device, behind what is queued there; the host does not wait for that.

    ``torch.tensor(values, device=...)`` copies from ordinary memory, for which the host waits until the whole queue has
    been worked off: in a backward pass that is the end of all overlap.
    """
    if not is_accelerated(device):
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, device="cpu", pin_memory=True).to(device, non_blocking=True)
