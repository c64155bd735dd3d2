"""After a failure: whether a group's ranks have started equally many collectives, so that the next ones will match.

A rank that leaves a context by an exception may leave peers behind with collectives that it never starts. Whatever the
group does next would be mixed with those: gradients of other iterations, or buffers of other sizes.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from ..comm.guard import REMEDY, store_with_deadline
from ..comm.ranks import Team
from ..comm.store import StoreWithDeadline
from ..errors import PeerFailed
from .group_record import record_of

_LONGEST_WAIT = timedelta(minutes=5)
_LOOK_EVERY_S = 0.05


def doubt(team: Team) -> None:
    """A context over the team has ended by an exception here: make sure before its next collective."""
    group = weakref.ref(team.group)  # whose tally it is that keeps this

    def make_sure_of_group() -> None:
        if (held := group()) is not None:
            make_sure(Team.of(held))

    team.tally.doubt = make_sure_of_group


def tell(team: Team, session: str, store: StoreWithDeadline | None) -> None:
    """This rank leaves a session, in whatever way: tell how many collectives it has started. ``session``: its key."""
    record = record_of(team)
    record.left = session
    if store is None:
        return
    record.published.append(_keys(session, team)[team.rank])
    with suppress(RuntimeError):  # its host is gone: the collectives will fail by themselves, or need no store
        store.set(record.published[-1], str(record.started))
        if len(record.published) > 2:  # a session ends for all ranks together: nobody waits in the one before the last
            store.delete_key(record.published.pop(0))


def is_left_behind(team: Team, session: str, store: StoreWithDeadline) -> bool:
    """Whether some rank has left the session before it started all that this one has: what this one waits for never
    ends. Where the store's host is gone nobody knows better.
    """
    started = record_of(team).started
    try:
        return any(store.check([key]) and int(store.get(key)) < started for key in _keys(session, team))
    except RuntimeError:
        return True


def make_sure(team: Team) -> None:
    """Compare, where a context has failed here, how many collectives the ranks had started when they left it.

    Waits for the peers to leave it, too; five minutes at most. Without a store nothing is compared. What the user's own
    code starts in the block is not seen, but for that of hooks.

    Raises:
        RuntimeError: the ranks are out of step, or not all of them have left it.
    """
    store = None if team.tally.doubt is None else store_with_deadline(team.group)
    if store is None:
        return
    keys = _keys(record_of(team).left, team)
    try:
        late = _wait_for(store, keys, team)
        by_rank = [] if late else [int(store.get(key)) for key in keys]
    except PeerFailed:
        raise
    except RuntimeError as error:
        raise RuntimeError(
            "Join: an earlier context on this process group ended by an exception, and the store that tells whether "
            f"its ranks are in step is gone. {REMEDY}"
        ) from error
    if late:
        raise RuntimeError(
            "Join: an earlier context on this process group ended by an exception, and not all of its ranks have "
            f"left it in time (not yet: {', '.join(map(str, late))}). {REMEDY}"
        )
    if len(set(by_rank)) > 1:
        raise RuntimeError(
            "Join: this process group is out of step since an earlier context ended by an exception (collectives "
            f"started, rank by rank: {by_rank}). What it does next would be mixed with what was left behind. {REMEDY}"
        )
    team.tally.doubt = None


def _keys(session: str, team: Team) -> list[str]:
    """By rank, where it tells what it had started when it left."""
    return [f"{session}/started/{rank}" for rank in team.members]


def _wait_for(store: StoreWithDeadline, keys: Sequence[str], team: Team) -> list[int]:
    """Wait until the ranks have set their keys, as long as that may take; those that have not."""
    end = time.monotonic() + min(store.timeout, _LONGEST_WAIT).total_seconds()
    while late := [rank for rank in team.members if not store.check([keys[rank]])]:
        if time.monotonic() > end:
            break
        if team.guard is not None:
            team.guard()
        time.sleep(_LOOK_EVERY_S)
    return late
