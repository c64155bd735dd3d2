"""Whether an iteration that one rank leaves after its forward is left so by all ranks: asked through the group's store.

All ranks may leave out a backward. Where only some do, the others wait in a reduction, and whatever a rank sent next
would meet that. No collective can tell these cases apart beforehand, so a rank that has left a backward out says so in
the store and waits until all have; one that waits in the reduction looks there, as it does for failures, and raises.
One that waits elsewhere meanwhile has come to no reduction. It says how many messages of the context it had posted by
then: where it is ahead of a rank that asks, nothing of that backward lies between them.
Once all have left one out alike, the program is one that does so, and nothing is asked any more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import torch.distributed as dist

from ..comm.guard import store_with_deadline
from ..comm.pending import Watch
from ..comm.ranks import Team
from ..comm.store import StoreWithDeadline
from .group_record import record_of

_FIRST_NAP_S = 0.0005
_LONGEST_NAP_S = 0.05


class LeftOpen:
    """What the ranks of one session have said."""

    def __init__(self, team: Team, key: str, store: StoreWithDeadline) -> None:
        self._rank = int(team.rank)
        self._key = key
        self._store = store
        self._said: Counter[tuple[int, int]] = Counter()

    @staticmethod
    def of(team: Team) -> LeftOpen | None:
        """That of the session that has begun; None without a store: then nothing is asked, and the backend fails."""
        store = store_with_deadline(team.group) if team.size > 1 else None
        return None if store is None else LeftOpen(team, f"{record_of(team).session_key}/left open", store)

    def agree(self, place: int, iteration: int, active: Sequence[int], message: int, watch: Watch) -> bool:
        """Say that this rank leaves out the backward of joinable ``place`` and posts the message of this number next.

        Returns whether all ``active`` ranks come to that message without it. Waits for them as long as the store's
        timeout is. What the watch raises, where a peer has left, ends the wait.
        """
        store, key = self._store, f"{self._key}/{place}/{iteration}"
        keys = [f"{key}/{rank}" for rank in active]
        nap, end = _FIRST_NAP_S, time.monotonic() + store.timeout.total_seconds()
        try:
            store.set(f"{key}/who", str(self._rank))
            while not (all_said := self._all_said(keys, message)) and time.monotonic() < end:
                watch()
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_NAP_S)
        except dist.DistError:  # the store's host is gone or frozen: collectives will fail by themselves
            return True
        return all_said

    def say(self, place: int, iteration: int, message: int) -> None:
        """Say that nothing which this rank starts before its message of this number belongs to that backward."""
        if message > self._said[place, iteration]:
            self._said[place, iteration] = message
            with suppress(RuntimeError):  # the store's host is gone
                self._store.set(f"{self._key}/{place}/{iteration}/{self._rank}", str(message))

    def _all_said(self, keys: list[str], message: int) -> bool:
        return self._store.check(keys) and all(int(self._store.get(key)) >= message for key in keys)

    def who(self, place: int, iteration: int) -> int | None:
        """The rank that has said last that it leaves out this backward; None if nobody has."""
        key = f"{self._key}/{place}/{iteration}/who"
        try:
            return int(self._store.get(key)) if self._store.check([key]) else None
        except RuntimeError:  # the store's host is gone
            return None
