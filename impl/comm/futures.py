"""Calling a user's communication hook, and waiting for its future with an eye on peers that have failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed import distributed_c10d

from .losses import of_a_collective
from .pending import Watch, fail, poll_on_host
from .ranks import Team


@contextmanager
def calling_a_hook(team: Team) -> Iterator[None]:
    """Around the call of a hook: counts for all that it starts, and notices whether that is anything on any group.

    A hook that communicates by other means, or only computes, has futures that do not depend on the team's peers. Of
    what it starts on another group they need not learn.
    """
    tally, before = team.tally, _started(team)
    if tally.doubt is not None:
        tally.doubt()
    tally.count()
    yield
    tally.count()
    after = _started(team)
    if before is None or after != before:
        tally.hooks_communicate = True
        tally.hooks_leave_group |= before is not None and after is not None and after[1] != before[1]


def _started(team: Team) -> tuple[int, int] | None:
    """How many collectives this process has started on the team's group, and on all others that it knows; None if one
    of them does not tell."""
    try:
        groups: list[Any] = [team.group, *({*distributed_c10d._world.pg_map} - {team.group})]
        own, *others = (int(group._get_sequence_number_for_group()) for group in groups)
        return own, sum(others)
    except Exception:  # a backend of another kind, or a class of the user's
        return None


def wait_for_future(future: torch._C.Future[Any], watch: Watch | None, team: Team, label: str) -> Any:
    """The future's value. ``label`` says what it stands for, in errors.

    The backend's own time limit ends the wait, and so does the watch, which is called now and then. A future of NCCL's
    is done as soon as its collective is queued: then this orders the current stream behind it, and the host goes on.
    """
    if watch is None:
        return future.wait()
    place = team.tally.place_of(label)
    poll_on_host(future.done, watch, place, team, on_peers=team.tally.hooks_communicate)
    try:
        return future.wait()
    except Exception as error:
        if not of_a_collective(error):  # of the user's own hook
            raise
        fail(error, watch, place, team, elsewhere=team.tally.hooks_leave_group)
