"""Waiting for the future of a user's communication hook, with an eye on peers that have failed."""

from __future__ import annotations

from typing import Any

import torch

from . import streams
from .losses import of_a_collective
from .pending import Watch, fail, poll_on_host
from .ranks import Team


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
    poll_on_host(future.done, watch, place, team)
    try:
        return future.wait()
    except Exception as error:
        if not of_a_collective(error):  # of the user's own hook
            raise
        fail(error, watch, place, team)
