"""How live ranks tell joined ones what comes next, and how a joined rank follows them.

A *follower* is a joinable of this package (DDP, ZeRO). Its joined ranks do not guess the order of an iteration: while
some rank shadows, the live ranks announce each act (a group of collectives) with one small all-reduce, and a joined
rank performs the shadow of the act that was announced. While nobody shadows, nothing is announced, and all that is
sent is one roll call where an iteration begins:

    rank 0 (live)    roll call ----- forward ----- backward: buckets --------- roll call -- ...
    rank 1 (live)    roll call ----- forward ----- backward: buckets --------- leaves the block: empty message
    afterwards       roll call, announces buckets early ----- forward ----- buckets
                     empty message, shadow of buckets; announced again where they could not be known early
    from then on     forward ----- roll call and announcement in one, as backward begins ---- buckets
                                   empty message, shadow of buckets

Where somebody is known to have joined, a roll call that nothing follows at once waits for the first announcement.

An act may be *announced early*: without waiting, so that no live rank waits for an answer before it begins, and joined
ranks are under way before they are needed. While everybody seems to be live it is the roll call that announces early.
An early announcement is pending until its act begins. If the act does not come, the live ranks shadow it, too, before
the next message, if somebody had joined and believed them.

The last rank that is left knows that it is *alone*: nobody adds anything to what it reduces. Its iterations need no
message, but for a sign of life now and then, so that no wait of the others runs into the group's timeout.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from zlib import crc32

import torch

from ..comm.pending import Pending
from ..comm.ranks import GroupRank, Team
from .base_session import BaseSession
from .handle import Handle
from .hooks import FollowingHook, Joinable, JoinHook
from .left_open import LeftOpen
from .lifecycle import SessionState
from .membership import Membership
from .message import MOST_ITERATIONS, Act, MessageLayout, Reading

_MAIN_HOOK = "main hook"  # the only act of a plain joinable
_SIGN_OF_LIFE_EVERY_S = 0.25  # of a rank that is alone; far below any group's timeout


class Session(BaseSession):
    """The session of a context that holds a follower; ``joinable._join_session`` while it lasts.

    In states other than LIVE, ``begin`` and ``announce`` do nothing (JOIN-055).
    """

    def __init__(
        self,
        team: Team,
        device: torch.device,
        throw: bool,
        joinables: Sequence[Joinable],
        hooks: Sequence[JoinHook],
        followers: Mapping[int, FollowingHook],
    ) -> None:
        """``followers``: by place in the list, what follows a joinable; its hook may be one of the user's around it."""
        super().__init__(team, device, throw, _layout(joinables, followers, team.size))
        self._membership = Membership(team)
        self._pending_announcement: Act | None = None  # early, its act not yet begun
        self._hooks = hooks
        self._followers = followers
        self._places = {id(joinable): place for place, joinable in enumerate(joinables)}
        self._leaders = _leaders(self._followers)
        #: whether more than one joinable leads: their acts may interleave, so they must be announced finely
        self.several_leaders = len(self._leaders) > 1
        #: the followers that call the roll; begin adds one that comes before them
        self._callers = {place for place in self._followers if place <= min(self._leaders)} | self._leaders
        self._begun: set[int] = set()  # the joinables that have begun since the last roll call, its caller included
        self._absence = False  # whether somebody was known to be absent when the current iteration began
        self._iterations: Counter[int] = Counter()  # how many each joinable has begun here, on live ranks
        self._shadowed: Counter[int] = Counter()  # and how many this rank has shadowed
        self._notified: set[int] = set()  # the plain joinables that have notified in this iteration, and the first one
        self._announced: set[int] = set()  # those that have notified in this block, here or on the live ranks
        self._main_hooks: Counter[int] = Counter()  # how many of each follower have run here
        #: asked where a backward is left out; None before the block, and once all ranks have left one out alike
        self._left_open: LeftOpen | None = None

    # what followers call on live ranks

    def begin(self, joinable: Joinable, act: int | None = None, *, likely: int | None = None) -> None:
        """Say that an iteration of ``joinable`` begins, and that ``act`` follows at once if one is given.

        Without one, ``likely`` may name an act to be announced with the roll call (see ``announce_early``).

        A joinable that leads calls the roll: without blocking, except in throwing mode, where ``InputsExhausted`` may
        be raised. It does so each time it begins, since between any two of its iterations another rank may have run
        out. The others only announce the act, unless they begin again with no roll call in between. One that begins
        before any other does, or is listed before any that leads, is a leader whatever it says of itself: iterations
        start with it.
        """
        if self._state is not SessionState.LIVE:
            return
        self.refuse_to_go_on()
        place = self._place_of(joinable)
        self._refuse_if_only_here_left_open([place])
        following = None if act is None else Act(place, act)
        if not self._begun:
            self._callers.add(place)
        if place in self._callers or place in self._begun:
            self._notified.clear()
            self._begin_iteration(place, following, None if likely is None or following else Act(place, likely))
            return
        if following is not None:
            self._announce(following)
        self._begun.add(place)

    def announce(self, joinable: Joinable, act: int) -> None:
        """Say, before its first collective, that ``act`` follows. Sends nothing while everybody is live."""
        if self._state is SessionState.LIVE:
            self._announce(Act(self._place_of(joinable), act))

    def announce_early(self, joinable: Joinable, act: int) -> None:
        """Say, without waiting, that ``act`` will be announced; not said while everybody seems to be live.

        For acts that are almost certain: one that does not come costs its collectives all the same.
        """
        if self._state is SessionState.LIVE and self._absence and self._pending_announcement is None:
            self._read_message()
            self._pending_announcement = Act(self._place_of(joinable), act)
            self._channel.announce(self._pending_announcement)

    def forward_begins(self) -> None:
        """A forward that nobody is told of begins: what plain joinables notify next belongs to it."""
        self._notified.clear()

    def hook_of(self, joinable: Joinable) -> FollowingHook:
        """The hook by which this block's context follows it."""
        return self._followers[self._place_of(joinable)]

    def confirm(self) -> None:
        """Read what is in flight: that the ranks agree must be known before anything that they made is handed out."""
        self._read_message()

    # what everybody may ask; each waits for the roll call, unless it says otherwise

    @property
    def active(self) -> int:
        """Number of active ranks in the current iteration."""
        return self._current().active

    @property
    def active_ranks(self) -> tuple[GroupRank, ...]:
        """The active ranks of the current iteration, ascending; after the last one, all."""
        return self._current().ranks

    @property
    def source(self) -> GroupRank:
        """The highest active rank: whose buffers and parameters count."""
        return self._current().source

    @property
    def likely_source(self) -> GroupRank:
        """The source as told by the message before the last one, whether that one has been read by now or not."""
        return self._membership.source if self._channel.in_flight is not None else self._membership.earlier_source

    @property
    def everyone_active(self) -> bool:
        """Whether no rank is known to have run out."""
        return self.active == self.team.size

    @property
    def alone(self) -> bool:
        """Whether this rank is the only one that has inputs, for all the rest of the block. Waits for nothing."""
        known = self._channel.in_flight is None and self._pending_announcement is None
        return known and self._state is SessionState.LIVE and self._membership.active == 1 < self.team.size

    # what the context calls

    def enter(self) -> None:
        """The block begins. RuntimeError if the group or one of the followers is unfit for it."""
        super().enter()
        self._read_message()  # of iterations before the block, if there were any
        alike = self.throw, [(place, hook.acts, hook.alike()) for place, hook in self._followers.items()]
        self._tell_place(crc32(repr(alike).encode()) % max(MOST_ITERATIONS // self.team.size, 1))
        self._left_open = LeftOpen.of(self.team)
        try:
            for hook in self._followers.values():
                hook.entered()
        except BaseException as error:
            self.report(error)
            raise

    def end(self) -> None:
        """Everybody has run out: in the post hooks all ranks take part in what they start."""
        super().end()
        self._membership.gather()

    def notify(self, joinable: Joinable) -> Handle | None:
        """A plain joinable is about to communicate: joined ranks run its main hook here, once per iteration.

        So of those that are not the first, further notifications before the next forward are vacuous. Called for a
        follower, which begins its iterations by itself, this only counts the active ranks.
        """
        if self._state is not SessionState.LIVE:
            return None
        self.refuse_to_go_on()
        place = self._place_of(joinable)
        first = joinable._join_config.is_first_joinable
        if place in self._followers:
            if not first:
                return None
            roll = self._call_roll(place, None)
        elif not first and place in self._notified:
            return None
        else:
            self._notified.add(place)
            self._announced.add(place)
            self._refuse_if_only_here_left_open(self._followers)
            roll = self._call_roll(place, Act(place, 0))
        if not first:
            return None
        number = self._channel.reader_of_active()
        return Handle(roll, self.watch, seen=lambda: self._read_if(roll), number=number)

    def shadow(self) -> bool:
        """Post empty messages and do what the sums say, until no rank is active. True on the ranks that came last."""
        self.refuse_to_go_on()
        for hook in self._followers.values():
            hook.leaving()
        self._refuse_if_only_here_left_open(self._followers)
        if not self.alone:
            self._catch_up()
        reading = self._channel.read(self._channel.post_end(self.throw), self.watch)
        while reading.active:
            if self.throw:
                self._failures.raise_exhausted_here()
            if self._state is SessionState.LIVE:
                self._move(SessionState.SHADOWING)
            self._take(reading)
            reading = self._channel.read(self._channel.post_empty(), self.watch)
        if self.shadowing:
            self._take(reading)
            self._run_unannounced()
        return self._state is SessionState.LIVE

    def follow_to(self, joinable: Joinable, act: int) -> None:
        """On a joined rank, in a hook that live ranks call, too: go on following them until this act is done."""
        due = Act(self._place_of(joinable), act)
        reading = None
        while reading is None or reading.act != due:
            reading = self._channel.read(self._channel.post_empty(), self.watch)
            if not reading.active:
                raise RuntimeError(
                    f"Join: rank {self.team.rank}, which has run out of inputs, waited in a hook for "
                    f"{self._layout.name_of(due)}, but no rank that has inputs came to it. Usual cause: a hook that "
                    "only some ranks have, or that calls it on some of them only. Let all ranks call it alike."
                )
            self._take(reading)

    def _take(self, reading: Reading) -> None:
        """Do on a joined rank what a message says."""
        if reading.active:
            self._membership.update(reading.ranks)
        if reading.begins is not None:
            self._shadowed[reading.begins] += reading.iterations
            self._warn_of_skew(max(self._shadowed.values()), deeper=1)
            if reading.begins in self._followers:
                self._followers[reading.begins].begins(reading.iterations)
                self._run_main_hooks()
        if reading.act is not None:
            self._follow(reading.act)

    def _run_main_hooks(self) -> None:
        """Those of the followers, once an iteration: of one that does not lead, in those of the first that does."""
        for place in self._followers:
            due = self._shadowed[place if place in self._leaders else min(self._leaders)]
            for _ in range(due - self._main_hooks[place]):
                self._hooks[place].main_hook()
            self._main_hooks[place] = due

    def _run_unannounced(self) -> None:
        """The main hooks of plain joinables that have never notified: they had nothing to shadow, and count all the
        same (JOIN-025)."""
        for place, hook in enumerate(self._hooks):
            if place not in self._followers and place not in self._announced:
                for _ in range(max(self._shadowed.values(), default=0)):
                    hook.main_hook()

    def refuse_to_go_on(self) -> None:
        """RuntimeError, and a note of it, if an exception that was caught inside the block has broken off an iteration.

        Peers that have inputs go on with it and wait there: whatever this rank sent next would meet their reductions.
        What all ranks have raised is raised again.
        """
        if self._state is not SessionState.LIVE or self.team.size == 1:
            return
        if self._failures.over is not None:
            self._failures.refuse_what_is_over()
        for place, hook in self._followers.items():
            broken = hook.broken_off()
            if broken is None:
                continue
            self._read_message()  # it may tell that nobody else has inputs
            if not broken.shadowed and (self._membership.active == 1 or self._left_open_by_all(place)):
                continue
            self.watch(in_collective=False)  # a peer that has failed before is the cause
            error = RuntimeError(
                f"Join: rank {self.team.rank} cannot go on in this block. Its last {broken.what} "
                f"(in {self._layout.names[place]}), which was caught inside the block; but the ranks whose batch did "
                "not fail go on with that iteration, and what came next here would be mixed with its reductions. "
                "Usual cause: try/except around an iteration, for bad batches. Let the error leave the block, or let "
                "all ranks decide alike, before the forward, which batches are skipped."
            )
            self.report(error)
            raise error

    # iterations that are left between forward and backward

    def _refuse_if_only_here_left_open(self, places: Iterable[int]) -> None:
        """RuntimeError if this rank has left out a backward that others reduce. Waits for the others where it has."""
        for place in places:
            all_alike = self._left_open_by_all(place)
            if all_alike is False:
                raise self._only_some_left_open(place, int(self.team.rank))
            if all_alike and self._followers[place].broken_off() is None:
                self._left_open = None

    def _left_open_by_all(self, place: int) -> bool | None:
        """Whether all ranks have left out the last backward of this joinable, as this one has; None: nobody asks."""
        left_open = self._left_open
        if left_open is None or not self._followers[place].left_open():
            return None
        if self._channel.unreported is not None:
            return None  # the announcement that the others have made for it will not fit this rank's
        self._read_message()
        if self._membership.active == 1:
            return None
        ranks, message = self._membership.ranks, self._channel.posted + 1
        watch = partial(self.watch, in_collective=False)  # the others answer in the store
        self._say_left_open(left_open, message)
        return left_open.agree(place, self._iterations[place], ranks, message, watch)

    def watch(self, failure: Exception | None = None, *, in_collective: bool = True) -> None:
        """Look for failed peers; RuntimeError, too, where this rank waits in a reduction that another has left out."""
        super().watch(failure, in_collective=in_collective)
        left_open = self._left_open
        if failure is not None or left_open is None:
            return
        for place, hook in self._followers.items():
            who = None if hook.left_open() else left_open.who(place, self._iterations[place])
            if who is not None:
                raise self._only_some_left_open(place, who)
        self._say_left_open(left_open, self._channel.posted)  # one that waits there may go on: this rank is elsewhere

    def _say_left_open(self, left_open: LeftOpen, message: int) -> None:
        """Say of each backward that is open that this rank comes to its message of this number without it."""
        for place, hook in self._followers.items():
            if hook.left_open():
                left_open.say(place, self._iterations[place], message)

    def _only_some_left_open(self, place: int, who: int) -> RuntimeError:
        return RuntimeError(
            f"Join: rank {who} has left its last iteration of {self._layout.names[place]} in its forward, or between "
            "that and its backward, while other ranks reduce the gradients of that iteration: what that rank sent next "
            "would be mixed with them. Usual cause: try/except around an iteration, and an error in the forward or the "
            "loss of one batch. Let the error leave the block, or let all ranks decide alike, before the forward, "
            "which batches are skipped."
        )

    # the order of messages

    def _begin_iteration(self, place: int, act: Act | None, likely: Act | None) -> None:
        """Call the roll, or leave it to the first announcement if joined ranks have nothing to do before that."""
        channel = self._channel
        self._shadow_pending()
        self._read_message()
        silent = self.alone and time.monotonic() - channel.last_post_s < _SIGN_OF_LIFE_EVERY_S
        if not silent or channel.unreported != place or channel.is_full:
            self._report_begun()
        self._absence = self._membership.active < self.team.size
        if self._absence and act is None:
            channel.begin_unreported(place)
            self._begun = {place}
        else:
            self._call_roll(place, act or likely)
            self._pending_announcement = likely
        self._iterations[place] += 1  # not before: a look must not take what others, who are further, leave out for it

    def _call_roll(self, place: int, act: Act | None) -> Pending:
        self._catch_up()
        roll = self._channel.call_roll(place, act)
        self._begun = {place}
        if self.throw:
            self._read_message()
        return roll

    def _announce(self, act: Act) -> None:
        """Announce an act if some rank shadows. The answer is awaited: a mismatch must show before the act begins.

        Not if the roll call has announced it: whoever does so confirms before the act's results are used.
        """
        if self._pending_announcement == act:
            self._pending_announcement = None
            if not self._absence:
                return
        else:
            self._shadow_pending()
            if self._channel.unreported is None and self.everyone_active:
                return
            self._channel.announce(act)
        self._read_message()

    def _shadow_pending(self) -> None:
        """Shadow what was announced early and did not come: an iteration broke off, and joined ranks wait in it."""
        if self._pending_announcement is not None:
            act, self._pending_announcement = self._pending_announcement, None
            self._read_message()
            if self._membership.active < self.team.size:
                self._follow(act)

    def _catch_up(self) -> None:
        """Nothing is left that was announced early, is unread or unreported."""
        self._shadow_pending()
        self._report_begun()

    def _report_begun(self) -> None:
        """Call the roll that was left to an announcement, if one was, in which case nothing is in flight. Read it."""
        unreported = self._channel.unreported
        if unreported is not None:
            self._channel.call_roll(unreported, None)
        self._read_message()

    # reading

    def _current(self) -> Membership:
        """The membership as it is in this iteration. Waits for the message in flight, and posts one that is due."""
        if not self.alone:  # else nothing will change
            self._report_begun()
        return self._membership

    def _read_message(self) -> None:
        """Read the message of this rank that is in flight, if one is."""
        pending, self._channel.in_flight = self._channel.in_flight, None
        if pending is None:
            return
        reading = self._channel.read(pending, self.watch)
        if self.throw and reading.exhausted:
            self._failures.raise_exhausted_elsewhere(reading.exhausted)
        self._membership.update(reading.ranks)

    def _read_if(self, roll: Pending) -> None:
        """Read this roll call unless a later one has already done so."""
        if self._channel.in_flight is roll:
            self._read_message()

    def _follow(self, act: Act) -> None:
        if act.joinable in self._followers:
            self._followers[act.joinable].follow(act.number)
        else:
            self._announced.add(act.joinable)
            self._hooks[act.joinable].main_hook()

    def _place_of(self, joinable: Joinable) -> int:
        try:
            return self._places[id(joinable)]
        except KeyError:
            raise RuntimeError(
                f"{type(joinable).__name__} is not listed in this join context, so its acts cannot be announced. "
                "Usual cause: a copy of a listed object. List the object that is used in the loop."
            ) from None


def _layout(
    joinables: Sequence[Joinable], followers: Mapping[int, FollowingHook], ranks: int
) -> MessageLayout:
    names = tuple(f"joinable {place} ({type(joinable).__name__})" for place, joinable in enumerate(joinables))
    acts = (followers[place].acts if place in followers else (_MAIN_HOOK,) for place in range(len(joinables)))
    return MessageLayout(names, tuple(acts), ranks)


def _leaders(followers: Mapping[int, FollowingHook]) -> frozenset[int]:
    """The places of the joinables that call the roll: leading followers; every follower if none leads.

    Plain joinables are no leaders in this sense: they notify, and each notification calls the roll.
    """
    leading = [place for place, hook in followers.items() if hook.leads]
    return frozenset(leading or followers)
