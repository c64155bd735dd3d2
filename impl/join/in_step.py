"""After a failure: whether a group's ranks have started equally many collectives, so that the next ones will match.

A rank that leaves a context by an exception may leave peers behind with collectives that it never starts. Whatever the
group does next would be mixed with those: gradients of other iterations, or buffers of other sizes.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from ..comm import collectives
from ..comm.ranks import Team

#: Groups, by name, on which a context has ended by an exception here and whose ranks were not seen in step since then.
_in_doubt: set[str] = set()
#: Keys that this rank has set for its last passages, by group; older ones are taken back.
_told: dict[str, list[str]] = {}
_LONGEST_WAIT = timedelta(minutes=5)

#: what to do where a group cannot be used any more
REMEDY = "Start the job anew, or make a new process group on all ranks and build models, optimizers and contexts on it."


def doubt(team: Team) -> None:
    """A passage over this group has ended by an exception on this rank."""
    _in_doubt.add(str(team.group.group_name))


def make_sure(team: Team, passage: str, store: dist.Store | None) -> None:
    """Tell the peers how many collectives this rank has started; compare where an earlier context has failed here.

    ``passage`` is a key, equal on all ranks. Waits for the peers only after a failure, five minutes at most. Without a
    store, or with a backend that does not count, nothing is compared.

    Raises:
        RuntimeError: the ranks are out of step, or not all of them have come here.
    """
    name, started = str(team.group.group_name), collectives.started(team)
    if store is None or started is None:
        return
    keys = [f"{passage}/started/{rank}" for rank in team.members]
    try:
        _tell(store, name, keys[team.rank], started)
    except RuntimeError:  # the store's host is gone: the collectives will fail by themselves, or need no store
        return
    if name not in _in_doubt:
        return
    try:
        store.wait(keys, min(store.timeout, _LONGEST_WAIT))  # type: ignore[attr-defined]
        by_rank = [int(store.get(key)) for key in keys]
    except RuntimeError as error:
        raise RuntimeError(
            "Join: an earlier context on this process group ended by an exception, and not all of its ranks have "
            f"come to the next one in time. {REMEDY}"
        ) from error
    if len(set(by_rank)) > 1:
        raise RuntimeError(
            "Join: this process group is out of step since an earlier context ended by an exception (collectives "
            f"started, rank by rank: {by_rank}). What it does next would be mixed with what was left behind. {REMEDY}"
        )
    _in_doubt.discard(name)


def _tell(store: dist.Store, name: str, key: str, started: int) -> None:
    store.set(key, str(started))
    told = _told.setdefault(name, [])
    told.append(key)
    if len(told) > 2:  # a passage ends for all ranks together, so nobody still waits in the one before the last
        store.delete_key(told.pop(0))
