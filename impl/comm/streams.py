"""Streams of accelerators, and nothing at all on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

#: One stream per device, for copies of control messages to the host. Made on first use, never changed.
_reading: dict[torch.device, Any] = {}


def is_accelerated(device: torch.device) -> bool:
    """Whether work on this device is queued on streams, so that waiting for it need not block the host."""
    return device.type not in ("cpu", "meta")


def reading(device: torch.device) -> AbstractContextManager[Any]:
    """Make a stream of its own current, for a copy to the host that must not wait for queued computation."""
    if not is_accelerated(device):
        return nullcontext()
    module = torch.get_device_module(device)
    if device not in _reading:
        _reading[device] = module.Stream(device=device)
    return module.stream(_reading[device])  # type: ignore[no-any-return]
