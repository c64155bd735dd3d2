"""Waiting for the future of a user's communication hook, with an eye on peers that have failed."""

from __future__ import annotations

from typing import Any

import torch

from .losses import of_a_collective
from .pending import Watch, fail, poll_on_host
from .ranks import Team


def wait_for_future(future: torch._C.Future[Any], watch: Watch | None, team: Team, label: str) -> Any:
    """The future's value. ``label`` says what it stands for, in errors.

    The backend's own time limit ends the wait, and so does the watch, which is called now and then. A future of NCCL's
    is done as soon as its collective is queued: then this orders the current stream behind it, and the host goes on.
    """
    if watch is None:
        return future.wait()
    place = team.tally.place_of(label)
    poll_on_host(future.done, watch, place, team)
    try:
        return future.wait()
    except Exception as error:
        if not of_a_collective(error):  # of the user's own hook
            raise
        fail(error, watch, place, team)
