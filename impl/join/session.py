"""What one rank knows of the others inside a followed context, and how it tells joined ranks what comes next.

A *follower* is a joinable of this package (DDP, ZeRO). Its joined ranks do not guess the order of an iteration: while
some rank shadows, the live ranks announce each act (a group of collectives) with one small all-reduce, and a joined
rank performs the shadow of the act that was announced. While nobody shadows, nothing is announced, and all that is
sent is one roll call where an iteration begins:

    rank 0 (live)    roll call ----- forward ----- backward: buckets --------- roll call -- ...
    rank 1 (live)    roll call ----- forward ----- backward: buckets --------- leaves the block: empty message
    afterwards       roll call, foretells buckets ----- forward ----- buckets
                     empty message, shadow of buckets; announced once more where they could not be foretold
    from then on     forward ----- roll call and announcement in one, as backward begins ---- buckets
                                   empty message, shadow of buckets

Where somebody is known to have joined, a roll call that nothing follows at once waits for the first announcement.

An act may be *foretold*: announced without waiting, so that no live rank waits for an answer before it begins, and
joined ranks are under way before they are needed. While everybody seems to be live it is the roll call that foretells.
An act that was foretold and does not come is owed: before the next message the live ranks shadow it, too, if somebody
had joined and believed them.

The last rank that is left knows that it is *alone*: nobody adds anything to what it reduces. Its iterations need no
message, but for a sign of life now and then, so that no wait of the others runs into the group's timeout.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..comm.pending import Pending
from ..comm.ranks import GroupRank, Team
from .exchange import Exchange
from .handle import Handle
from .hooks import FollowingHook
from .lifecycle import Phase
from .message import Act, Layout, Reading
from .passage import Passage

if TYPE_CHECKING:
    from .hooks import Joinable, JoinHook

_MAIN_HOOK = "main hook"  # the only act of a plain joinable
_SIGN_OF_LIFE_EVERY_S = 0.25  # of a rank that is alone; far below any group's timeout


class Session(Passage):
    """The passage through a context that holds a follower; ``joinable._join_session`` while it lasts.

    All that it tells comes from the last message read. Every rank reads every message, so the answers are equal on all
    ranks at equal places of the program. In phases other than LIVE, ``begin`` and ``announce`` do nothing (JOIN-055).
    """

    def __init__(
        self, team: Team, device: torch.device, throw: bool, joinables: Sequence[Joinable], hooks: Sequence[JoinHook]
    ) -> None:
        super().__init__(team, device, throw)
        self._hooks = tuple(hooks)
        self._places = {id(joinable): place for place, joinable in enumerate(joinables)}
        self._leaders = _leaders(hooks)
        self._layout = Layout(
            names=tuple(f"joinable {place} ({type(joinable).__name__})" for place, joinable in enumerate(joinables)),
            acts=tuple(_acts(hook) for hook in hooks),
            ranks=team.size,
        )
        self._exchange = Exchange(team, device, self._layout)
        self._roll: Pending | None = None  # the message of a live rank not yet read; at most one
        self._last = Reading(tuple(GroupRank(rank) for rank in team.members))  # the last message with active ranks
        self._before = self._last  # the message before that
        self._callers = set(self._leaders)  # the followers that call the roll; begin adds one that comes before them
        self._begun: set[int] = set()  # the joinables that have begun since the last roll call, its caller included
        self._unsaid: int | None = None  # whose iteration has begun with somebody absent and is not yet told of
        self._unsaid_iterations = 0  # how many such iterations; more than one only where this rank is alone
        self._absence = False  # whether somebody was known to be absent when the current iteration began
        self._owed: Act | None = None  # foretold and not yet begun

    # what followers call on live ranks

    def begin(self, joinable: Joinable, act: int | None = None, *, likely: int | None = None) -> None:
        """Say that an iteration of ``joinable`` begins, and that ``act`` follows at once if one is given.

        Without one, ``likely`` may name an act to be foretold with the roll call (see ``foretell``).

        A joinable that leads calls the roll: without blocking, except in throwing mode, where ``InputsExhausted`` may
        be raised. It does so each time it begins, since between any two of its iterations another rank may have run
        out. The others only announce the act, unless they begin again with no roll call in between. One that begins
        before any other does is a leader whatever it says of itself: its iterations start with it.
        """
        if self._phase is not Phase.LIVE:
            return
        place = self._place_of(joinable)
        following = None if act is None else Act(place, act)
        if not self._begun:
            self._callers.add(place)
        if place in self._callers or place in self._begun:
            self._begin_iteration(place, following, None if likely is None or following else Act(place, likely))
            return
        if following is not None:
            self._tell(following)
        self._begun.add(place)

    def announce(self, joinable: Joinable, act: int) -> None:
        """Say, before its first collective, that ``act`` follows. Sends nothing while everybody is live."""
        if self._phase is Phase.LIVE:
            self._tell(Act(self._place_of(joinable), act))

    def confirm(self) -> None:
        """Read what is in flight: that the ranks agree must be known before anything that they made is handed out."""
        self._settle()

    def foretell(self, joinable: Joinable, act: int) -> None:
        """Say, without waiting, that ``act`` will be announced; not said while everybody seems to be live.

        For acts that are almost certain: one that does not come costs its collectives all the same.
        """
        if self._phase is Phase.LIVE and self._absence and self._owed is None:
            self._settle()
            self._owed = Act(self._place_of(joinable), act)
            self._roll = self._post_act(self._owed)

    # what everybody may ask; each waits for the roll call

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

    @property
    def several_followers(self) -> bool:
        """Whether more than one joinable leads: their acts may interleave, so they must be announced finely."""
        return len(self._leaders) > 1

    # what the context calls

    def notify(self, joinable: Joinable) -> Handle | None:
        """A plain joinable is about to communicate: joined ranks run its main hook here.

        Called for a follower, which begins its iterations by itself, this only counts the active ranks.
        """
        if self._phase is not Phase.LIVE:
            return None
        place = self._place_of(joinable)
        first = joinable._join_config.is_first_joinable
        if isinstance(self._hooks[place], FollowingHook):
            if not first:
                return None
            roll = self._call_roll(place, None)
        else:
            roll = self._call_roll(place, Act(place, 0))
        if not first:
            return None
        return Handle(roll, self.watch, seen=lambda: self._settle_if(roll), number=self._exchange.active)

    def shadow(self) -> bool:
        """Post empty messages and do what the sums say, until no rank is active. True on the ranks that came last."""
        iterations: Counter[int] = Counter()
        reading = self._run_out()
        while reading.active:
            if self.throw:
                self._raise_exhausted_here()
            if self._phase is Phase.LIVE:
                self._move(Phase.SHADOWING)
            self._before, self._last = self._last, reading
            self._count(reading, iterations)
            if reading.act is not None:
                self._follow(reading.act)
            reading = self._read(self._exchange.answer(self._layout.joined()))
        if self.shadowing:
            self._count(reading, iterations)
        return self._phase is Phase.LIVE

    def _count(self, reading: Reading, iterations: Counter[int]) -> None:
        if reading.begins is not None:
            iterations[reading.begins] += reading.iterations
            self._warn_of_skew(max(iterations.values()), deeper=1)

    # messages

    def _begin_iteration(self, place: int, act: Act | None, likely: Act | None) -> None:
        """Call the roll, or leave it to the first announcement if joined ranks have nothing to do before that."""
        self._pay()
        self._settle()
        silent = self.alone and time.monotonic() - self._exchange.last_word_s < _SIGN_OF_LIFE_EVERY_S
        if not silent or self._unsaid != place:
            self._say()
            self._settle()
        self._absence = self._last.active < self.team.size
        if self._absence and act is None:
            self._unsaid = place
            self._unsaid_iterations += 1
            self._begun = {place}
        else:
            self._call_roll(place, act or likely)
            self._owed = likely

    def _run_out(self) -> Reading:
        """The first empty message of this rank."""
        if not self.alone:
            self._catch_up()
        begins, self._unsaid = self._unsaid, None
        return self._read(self._exchange.answer(self._layout.joined(self.throw, begins, self._unsaid_iterations)))

    def _call_roll(self, place: int, act: Act | None) -> Pending:
        self._catch_up()
        roll = self._roll = self._post_roll(place, act)
        self._begun = {place}
        if self.throw:
            self._settle()
        return roll

    def _tell(self, act: Act) -> None:
        """Announce an act if some rank shadows. The answer is awaited: a mismatch must show before the act begins.

        Not if the roll call has foretold it: whoever does so confirms before the act's results are used.
        """
        if self._owed == act:
            self._owed = None
            if not self._absence:
                return
        else:
            self._pay()
            if self._unsaid is None and self.everyone_active:
                return
            self._roll = self._post_act(act)
        self._settle()

    def _post_act(self, act: Act) -> Pending:
        return self._post(self._unsaid, act, f"Join: announcement of {self._layout.name_of(act)}")

    def _pay(self) -> None:
        """Shadow what was foretold and did not come: an iteration was broken off, and joined ranks wait in it."""
        if self._owed is not None:
            act, self._owed = self._owed, None
            self._settle()
            if self._last.active < self.team.size:
                self._follow(act)

    def _catch_up(self) -> None:
        """Nothing that is owed, unread or unsaid is left."""
        self._pay()
        self._settle()
        self._say()
        self._settle()

    def _say(self) -> None:
        """Call the roll that was left to an announcement. While there is one nothing is in flight and nothing owed."""
        if self._unsaid is not None:
            self._roll = self._post_roll(self._unsaid, None)

    def _post_roll(self, place: int, act: Act | None) -> Pending:
        return self._post(place, act, f"Join: roll call of {self._layout.names[place]}")

    def _post(self, begins: int | None, act: Act | None, label: str) -> Pending:
        """Post a message of this rank while it is live, which also tells what was unsaid."""
        iterations, self._unsaid, self._unsaid_iterations = max(self._unsaid_iterations, 1), None, 0
        return self._exchange.post(begins, act, iterations, label)

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
        self._before, self._last = self._last, reading

    def _current(self) -> Reading:
        if not self.alone:  # else nothing will change
            self._say()
            self._settle()
        return self._last

    def _settle_if(self, roll: Pending) -> None:
        """Read this roll call unless a later one has already done so."""
        if self._roll is roll:
            self._settle()

    def _follow(self, act: Act) -> None:
        hook = self._hooks[act.joinable]
        if isinstance(hook, FollowingHook):
            hook.follow(act.number)
        else:
            hook.main_hook()

    def _place_of(self, joinable: Joinable) -> int:
        try:
            return self._places[id(joinable)]
        except KeyError:
            raise RuntimeError(
                f"{type(joinable).__name__} is not listed in this join context, so its acts cannot be announced. "
                "Usual cause: a copy of a listed object. List the object that is used in the loop."
            ) from None


def _acts(hook: JoinHook) -> tuple[str, ...]:
    return tuple(hook.acts) if isinstance(hook, FollowingHook) else (_MAIN_HOOK,)


def _leaders(hooks: Sequence[JoinHook]) -> frozenset[int]:
    """The places of the joinables that call the roll: leading followers; every follower if none leads.

    Plain joinables are no leaders in this sense: they notify, and each notification calls the roll.
    """
    followers = [place for place, hook in enumerate(hooks) if isinstance(hook, FollowingHook)]
    leading = [place for place in followers if hooks[place].leads]  # type: ignore[attr-defined]
    return frozenset(leading or followers)
