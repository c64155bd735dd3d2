"""Waiting for the future of a user's communication hook, with an eye on peers that have failed."""

from __future__ import annotations

import time
from typing import Any

import torch

from . import streams
from .guard import of_a_collective
from .pending import Watch, fail, look, until_next_look
from .ranks import Team

_FIRST_NAP_S = 0.00001
_LONGEST_NAP_S = 0.0005


def wait_for_future(
    future: torch._C.Future[Any], device: torch.device, watch: Watch | None, team: Team, label: str
) -> Any:
    """The future's value. ``label`` says what it stands for, in errors.

    On an accelerator this orders the current stream behind the reduction and does not block the host. On the host the
    backend's own time limit ends the wait, and so does the watch, which is called now and then.
    """
    if watch is None or streams.is_accelerated(device):
        return future.wait()
    place = team.tally.place_of(label)
    nap = _FIRST_NAP_S
    begun = time.monotonic()
    next_look = begun + until_next_look(0, team.size)
    while not future.done():
        if time.monotonic() >= next_look:
            look(watch, place, team, begun)
            next_look = time.monotonic() + until_next_look(time.monotonic() - begun, team.size)
        time.sleep(nap)
        nap = min(nap * 1.3, _LONGEST_NAP_S)
    try:
        return future.wait()
    except Exception as error:
        if not of_a_collective(error):  # of the user's own hook
            raise
        fail(error, watch, place, team)
