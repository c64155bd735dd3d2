"""Waiting for the future of a user's communication hook, with an eye on peers that have failed."""

from __future__ import annotations

import time
from typing import Any

import torch

from . import streams
from .pending import Watch, until_next_look

_FIRST_NAP_S = 0.00001
_LONGEST_NAP_S = 0.0005


def wait_for_future(future: torch._C.Future[Any], device: torch.device, watch: Watch | None) -> Any:
    """The future's value.

    On an accelerator this orders the current stream behind the reduction and does not block the host. On the host the
    backend's own time limit ends the wait, and inside a join context the watch, which is called now and then.
    """
    if watch is None or streams.is_accelerated(device):
        return future.wait()
    nap = _FIRST_NAP_S
    begun = time.monotonic()
    next_look = begun + until_next_look(0, 1)
    while not future.done():
        if time.monotonic() >= next_look:
            watch()
            next_look = time.monotonic() + until_next_look(time.monotonic() - begun, 1)
        time.sleep(nap)
        nap = min(nap * 1.3, _LONGEST_NAP_S)
    return future.wait()
