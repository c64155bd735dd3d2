"""How live ranks tell joined ones what comes next, and how a joined rank follows them.

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
from ..comm.ranks import Team
from .attendance import Attendance
from .handle import Handle
from .hooks import FollowingHook
from .lifecycle import Phase
from .message import Act, Layout, Reading

if TYPE_CHECKING:
    from .hooks import Joinable, JoinHook

_MAIN_HOOK = "main hook"  # the only act of a plain joinable
_SIGN_OF_LIFE_EVERY_S = 0.25  # of a rank that is alone; far below any group's timeout


class Session(Attendance):
    """The passage through a context that holds a follower; ``joinable._join_session`` while it lasts.

    In phases other than LIVE, ``begin`` and ``announce`` do nothing (JOIN-055).
    """

    def __init__(
        self, team: Team, device: torch.device, throw: bool, joinables: Sequence[Joinable], hooks: Sequence[JoinHook]
    ) -> None:
        super().__init__(team, device, throw, _layout(joinables, hooks, team.size))
        self._hooks = tuple(hooks)
        self._places = {id(joinable): place for place, joinable in enumerate(joinables)}
        self._leaders = _leaders(hooks)
        self._callers = set(self._leaders)  # the followers that call the roll; begin adds one that comes before them
        self._begun: set[int] = set()  # the joinables that have begun since the last roll call, its caller included
        self._absence = False  # whether somebody was known to be absent when the current iteration began

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
        self.refuse_to_go_on()
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

    def foretell(self, joinable: Joinable, act: int) -> None:
        """Say, without waiting, that ``act`` will be announced; not said while everybody seems to be live.

        For acts that are almost certain: one that does not come costs its collectives all the same.
        """
        if self._phase is Phase.LIVE and self._absence and self._owed is None:
            self._settle()
            self._owed = Act(self._place_of(joinable), act)
            self._roll = self._post_act(self._owed)

    @property
    def several_followers(self) -> bool:
        """Whether more than one joinable leads: their acts may interleave, so they must be announced finely."""
        return len(self._leaders) > 1

    # what the context calls

    def enter(self) -> None:
        """The block begins. RuntimeError if the group or one of the followers is unfit for it."""
        super().enter()
        try:
            for hook in self._hooks:
                if isinstance(hook, FollowingHook):
                    hook.entered()
        except BaseException as error:
            self.report(error)
            raise

    def notify(self, joinable: Joinable) -> Handle | None:
        """A plain joinable is about to communicate: joined ranks run its main hook here.

        Called for a follower, which begins its iterations by itself, this only counts the active ranks.
        """
        if self._phase is not Phase.LIVE:
            return None
        self.refuse_to_go_on()
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
        self.refuse_to_go_on()
        iterations: Counter[int] = Counter()
        reading = self._run_out()
        while reading.active:
            if self.throw:
                self._raise_exhausted_here()
            if self._phase is Phase.LIVE:
                self._move(Phase.SHADOWING)
            self._keep(reading)
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

    def refuse_to_go_on(self) -> None:
        """RuntimeError, and a note of it, if an exception that was caught inside the block has broken off an iteration.

        Peers that have inputs go on with it and wait there: whatever this rank sent next would meet their reductions.
        """
        if self._phase is not Phase.LIVE:
            return
        for place, hook in enumerate(self._hooks):
            broken = hook.broken_off() if isinstance(hook, FollowingHook) else None
            if broken is None:
                continue
            self._settle()  # it may tell that nobody else has inputs
            if self._last.active == 1 and not broken.shadowed:
                continue
            self.watch()  # a peer that has failed before is the cause
            error = RuntimeError(
                f"Join: rank {self.team.rank} cannot go on in this block. Its last {broken.what} "
                f"(in {self._layout.names[place]}), which was caught inside the block; but the ranks whose batch did "
                "not fail go on with that iteration, and what came next here would be mixed with its reductions. "
                "Usual cause: try/except around an iteration, for bad batches. Let the error leave the block, or let "
                "all ranks decide alike, before the forward, which batches are skipped."
            )
            self.report(error)
            raise error

    # what is said, and when

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


def _layout(joinables: Sequence[Joinable], hooks: Sequence[JoinHook], ranks: int) -> Layout:
    names = tuple(f"joinable {place} ({type(joinable).__name__})" for place, joinable in enumerate(joinables))
    return Layout(names, tuple(_acts(hook) for hook in hooks), ranks)


def _acts(hook: JoinHook) -> tuple[str, ...]:
    return tuple(hook.acts) if isinstance(hook, FollowingHook) else (_MAIN_HOOK,)


def _leaders(hooks: Sequence[JoinHook]) -> frozenset[int]:
    """The places of the joinables that call the roll: leading followers; every follower if none leads.

    Plain joinables are no leaders in this sense: they notify, and each notification calls the roll.
    """
    followers = [place for place, hook in enumerate(hooks) if isinstance(hook, FollowingHook)]
    leading = [place for place in followers if hooks[place].leads]  # type: ignore[attr-defined]
    return frozenset(leading or followers)
