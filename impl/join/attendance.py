"""What one rank knows of the others inside a followed context, and the messages by which it knows it.

One message at a time is in flight. Every rank reads every message, so what the last one said is equal on all ranks at
equal places of the program. Between a rank's words and its deeds two things may stand open: an iteration that has begun
is *unsaid* until a message tells of it, and an act that a message has foretold is *owed* until it begins.
"""

from __future__ import annotations

import torch

from ..comm.pending import Pending
from ..comm.ranks import GroupRank, Team
from .exchange import Exchange
from .lifecycle import Phase
from .message import Act, Layout, Reading
from .passage import Passage


class Attendance(Passage):
    """The side of a ``Session`` that posts and reads its messages. What they say, and when, is the session's affair."""

    def __init__(self, team: Team, device: torch.device, throw: bool, layout: Layout) -> None:
        super().__init__(team, device, throw)
        self._layout = layout
        self._exchange = Exchange(team, device, layout)
        self._roll: Pending | None = None  # the message of a live rank not yet read; at most one
        self._last = Reading(tuple(GroupRank(rank) for rank in team.members))  # the last message with active ranks
        self._before = self._last  # the message before that
        self._unsaid: int | None = None  # whose iteration has begun with somebody absent and is not yet told of
        self._unsaid_iterations = 0  # how many such iterations; more than one only where this rank is alone
        self._owed: Act | None = None  # foretold and not yet begun

    # what everybody may ask; each waits for the roll call, unless it says otherwise

    @property
    def active(self) -> int:
        """Number of active ranks in the current iteration."""
        return self._current().active

    @property
    def active_ranks(self) -> tuple[GroupRank, ...]:
        """The active ranks of the current iteration, ascending; after the last one, those that took part in it."""
        return self._current().ranks

    @property
    def source(self) -> GroupRank:
        """The highest active rank: whose buffers and parameters count."""
        return self._current().ranks[-1]

    @property
    def likely_source(self) -> GroupRank:
        """The source as told by the message before the last one, whether that one has been read by now or not."""
        return (self._last if self._roll is not None else self._before).ranks[-1]

    @property
    def everyone_active(self) -> bool:
        """Whether no rank is known to have run out."""
        return self.active == self.team.size

    @property
    def alone(self) -> bool:
        """Whether this rank is the only one that has inputs, for all the rest of the block. Waits for nothing."""
        known = self._phase is Phase.LIVE and self._roll is None and self._owed is None
        return known and self._last.active == 1 < self.team.size

    def confirm(self) -> None:
        """Read what is in flight: that the ranks agree must be known before anything that they made is handed out."""
        self._settle()

    # posting

    def _post_roll(self, place: int, act: Act | None) -> Pending:
        return self._post(place, act, f"Join: roll call of {self._layout.names[place]}")

    def _post_act(self, act: Act) -> Pending:
        return self._post(self._unsaid, act, f"Join: announcement of {self._layout.name_of(act)}")

    def _post(self, begins: int | None, act: Act | None, label: str) -> Pending:
        """Post a message of this rank while it is live, which also tells what was unsaid."""
        iterations, self._unsaid, self._unsaid_iterations = max(self._unsaid_iterations, 1), None, 0
        return self._exchange.post(begins, act, iterations, label)

    def _say(self) -> None:
        """Call the roll that was left to an announcement. While there is one nothing is in flight and nothing owed."""
        if self._unsaid is not None:
            self._roll = self._post_roll(self._unsaid, None)

    # reading

    def _read(self, pending: Pending) -> Reading:
        with self._shared():
            return self._exchange.read(pending, self.watch)

    def _settle(self) -> None:
        """Read the message that is in flight, if one is."""
        if self._roll is None:
            return
        roll, self._roll = self._roll, None
        reading = self._read(roll)
        if self.throw and reading.exhausted:
            self._raise_exhausted_elsewhere(reading.exhausted)
        self._keep(reading)

    def _settle_if(self, roll: Pending) -> None:
        """Read this roll call unless a later one has already done so."""
        if self._roll is roll:
            self._settle()

    def _keep(self, reading: Reading) -> None:
        """Keep what a message with active ranks said."""
        self._before, self._last = self._last, reading

    def _current(self) -> Reading:
        if not self.alone:  # else nothing will change
            self._say()
            self._settle()
        return self._last
