"""One run of a few ranks in one process: threads that hand a baton on, and a chooser that says who has it next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

_RANKS_GIVE_UP_S = 300.0  # far longer than any run takes


class Transition(NamedTuple):
    """What may happen next: a rank takes its pending step, in one of several ways."""

    rank: int
    #: GO: as it should. LOOK: its wait's slice of time runs out. EXPIRE: its time is up. SLOW: it goes, and takes long.
    #: RAISE, DIE: it fails instead
    how: str
    #: DIE: how many of the collectives it has started have left it
    sent: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank} {self.how}" + (f" (its first {self.sent} collectives got out)" * (self.how == DIE))


GO, LOOK, EXPIRE, SLOW, RAISE, DIE = "goes on", "looks up", "runs out of time", "takes long", "raises", "dies"


class Interrupted(BaseException):
    """What a rank raises that is chosen to fail inside the library, as a KeyboardInterrupt would."""


class BadBatch(Exception):
    """What a rank raises that is chosen to fail in the training loop's own code."""


class Killed(BaseException):
    """Unwinds the thread of a rank that has died, or whose run is over; nothing that it does counts any more."""


@dataclass(frozen=True)
class Step:
    """What a rank is about to do."""

    kind: str  # "start", "wait", "store", "sleep" or "point", the last in the training loop's own code
    what: str  # for people, and part of the state
    is_ready: Callable[[], bool] = lambda: True
    #: whether it waits in slices of a time, so that it may look around before it is ready
    sliced: bool = False
    #: seconds until it gives up, where it waits with a limit
    limit_s: float | None = None
    #: the words in the store that it reads or, if it is said, writes
    words: frozenset[str] = frozenset()
    writes: bool = False


class Chooser(Protocol):
    """Says what happens next."""

    def choose(self, simulation: Simulation, possible: Sequence[Transition]) -> Transition | None:
        """One of the transitions; None ends the run here, for nothing new can follow."""


class Messages(Protocol):
    """What the ranks share, as far as the simulation must know it."""

    def key(self) -> Hashable:
        """Everything in it that is not part of some rank's history."""

    def version(self) -> int:
        """A number that changes with each new word in the store."""

    def word(self, key: str) -> bytes | None:
        """What lies in the store under a key."""

    def lost(self, rank: int, sent: int) -> None:
        """This rank has died; of what it started, only the first ``sent`` got out."""

    def may_have_sent(self, rank: int) -> range:
        """How many of its collectives may have left this rank by now."""

    def started_by(self, rank: int) -> int:
        """How many collectives this rank has started."""


@dataclass
class Rank:
    """A rank's thread and what is known of it."""

    number: int
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    pending: Step | None = None  # None: it runs, or has ended
    granted: str = GO  # how it takes its step
    history: int = 0  # a hash of all that it has done and seen
    clock_s: float = 0.0
    #: the words that it read when its wait last looked up, and what they were; None before its first look
    looked: dict[str, bytes | None] | None = None
    inside: bool = False  # in the block, where it may be made to fail
    ended: bool = False
    dead: bool = False
    error: BaseException | None = None
    result: Any = None


class Violation(Exception):
    """A property does not hold."""


class Simulation:
    """Runs ``program(rank number)`` on every rank, one step at a time, until all have ended."""

    def __init__(
        self,
        size: int,
        program: Callable[[int], Any],
        messages: Messages,
        chooser: Chooser,
        suspect: int | None = None,
    ) -> None:
        self.ranks = [Rank(number) for number in range(size)]
        self.messages = messages
        self._program = program
        self._chooser = chooser
        self._done = threading.Semaphore(0)
        self.over = False
        #: the rank that was made to fail, and how
        self.failed: Transition | None = None
        #: the rank that may be made to fail inside the block
        self.suspect = suspect
        self._calm_version = 0  # of the store, when the last rank came into the block
        #: every transition so far
        self.path: list[Transition] = []
        self.taken: list[str] = []  # the step of each of them
        self.violation: Violation | None = None
        self.pruned = False

    def run(self) -> None:
        """Until every rank has ended, nothing can go on, or the chooser has seen enough."""
        threads = [threading.Thread(target=self._live, args=(rank,), daemon=True) for rank in self.ranks]
        for rank in self.ranks:
            rank.pending = Step("point", "begins")
        for thread in threads:
            thread.start()
        self._next(None)
        if not self._done.acquire(timeout=_RANKS_GIVE_UP_S):
            raise RuntimeError("a simulated rank has blocked beneath the simulation; it waits for something real")
        self.over = True
        for rank, thread in zip(self.ranks, threads, strict=True):
            rank.baton.release()
            thread.join()

    # on ranks

    def step(self, step: Step) -> str:
        """Called on a rank's thread before it acts; returns how it is to act. What it does next is atomic."""
        rank = current()
        if self.over or rank.dead:
            raise Killed
        rank.pending = step
        self._next(rank)
        if self.over:
            raise Killed
        rank.pending = None
        rank.history = hash((rank.history, step.kind, step.what, rank.granted))
        if rank.granted == DIE:
            raise Killed
        if rank.granted == RAISE:
            raise BadBatch("a bad batch") if step.kind == "point" else Interrupted("an interrupt")
        return rank.granted

    def saw(self, value: Hashable) -> None:
        """This rank has learned something that other ranks' doings decide."""
        rank = current()
        rank.history = hash((rank.history, value))

    def point(self, what: str) -> None:
        """A place in the training loop's own code."""
        self.step(Step("point", what))

    def entered(self) -> None:
        """This rank is in the block."""
        current().inside = True
        self._calm_version = self.messages.version()

    def is_calm(self) -> bool:
        """Whether nobody has failed, and the store holds no word yet but what was put there on entering."""
        entering = not all(rank.inside or rank.ended for rank in self.ranks)
        return self.failed is None and (entering or self._calm_version == self.messages.version())

    def violated(self, text: str) -> None:
        """A property does not hold: the run ends here."""
        self.violation = Violation(text)
        self.over = True
        raise Killed

    def _live(self, rank: Rank) -> None:
        _present.rank = rank
        rank.baton.acquire()
        try:
            if not self.over:
                rank.pending = None
                rank.result = self._program(rank.number)
        except Killed:
            pass
        except BaseException as error:
            rank.error = error
        finally:
            rank.ended, rank.pending, rank.inside = True, None, False
            rank.history = hash((rank.history, "ended", type(rank.error).__name__))
            if self.violation is not None:
                self._done.release()
            elif not self.over:
                self._next(rank)

    # the baton

    def _next(self, holder: Rank | None) -> None:
        """Decide who goes on; a holder of the baton that does not, waits here until it does."""
        chosen = self._decide()
        if chosen is None:
            self.over = True
            self._done.release()
        if holder is not None and chosen is holder and not holder.ended:
            return
        if chosen is not None:
            chosen.baton.release()
        if holder is not None and not holder.ended:
            holder.baton.acquire()

    def _decide(self) -> Rank | None:
        possible = self.possible()
        if not possible:
            if not all(rank.ended for rank in self.ranks):
                self.violation = Violation(f"nobody can go on: {self.whereabouts()}")
            return None
        chosen = self._chooser.choose(self, possible)
        if chosen is None:
            self.pruned = True
            return None
        self.path.append(chosen)
        return self._grant(chosen)

    def _grant(self, chosen: Transition) -> Rank:
        rank = self.ranks[chosen.rank]
        rank.granted = chosen.how
        assert rank.pending is not None
        self.taken.append(rank.pending.what)
        if chosen.how == SLOW:
            rank.clock_s += 1.0
        elif chosen.how == LOOK:
            rank.looked = {}
            rank.clock_s += rank.pending.limit_s or 0.0
        elif chosen.how == EXPIRE:
            for each in self.ranks:
                each.clock_s += rank.pending.limit_s or 0.0
        elif chosen.how in (RAISE, DIE):
            self.failed = chosen
        if chosen.how == DIE:
            rank.dead = True
            self.messages.lost(chosen.rank, chosen.sent)
        return rank

    # what is possible

    def possible(self) -> list[Transition]:
        """All that may happen next. Time passes only where nobody can do anything without it."""
        found: list[Transition] = []
        for rank in self.ranks:
            step = rank.pending
            if step is None:
                continue
            if step.is_ready():
                found.append(Transition(rank.number, GO))
                if step.what.endswith(_MAY_TAKE_LONG):
                    found.append(Transition(rank.number, SLOW))
            elif step.sliced and self._may_learn(rank):
                found.append(Transition(rank.number, LOOK))
            if self.failed is None and rank.number == self.suspect and rank.inside:
                found += self._failures(rank.number, step)
        return found or self._expiring()

    def _may_learn(self, rank: Rank) -> bool:
        """Whether a look could find what the last one did not: if it reads the same words, it ends in the same way."""
        if rank.looked is None:
            return not self.is_calm()
        return any(self.messages.word(key) != value for key, value in rank.looked.items())

    def _failures(self, rank: int, step: Step) -> list[Transition]:
        raising = [Transition(rank, RAISE)] if step.kind in ("start", "wait", "point") else []
        return raising + [Transition(rank, DIE, sent) for sent in self.messages.may_have_sent(rank)]

    def _expiring(self) -> list[Transition]:
        """The waits with a limit that end first. A group's own timeout counts only after a failure."""
        limits = {
            rank.number: rank.pending.limit_s
            for rank in self.ranks
            if rank.pending is not None and rank.pending.limit_s is not None and not rank.pending.sliced
            if rank.pending.kind != "wait" or self.failed is not None
        }
        soonest = min(limits.values(), default=0.0)
        return [Transition(number, EXPIRE) for number, limit in limits.items() if limit == soonest]

    def key(self) -> int:
        """The state, as a hash."""
        ranks = tuple(
            (each.history, each.pending and each.pending.what, each.clock_s, each.ended, self._may_learn(each))
            for each in self.ranks
        )
        return hash((ranks, self.messages.key(), self.failed))

    def whereabouts(self) -> str:
        """Where each rank stands, for people."""
        return "; ".join(f"rank {rank.number} {_place(rank)}" for rank in self.ranks)


_MAY_TAKE_LONG = "(may take long)"


def taking_long(what: str) -> str:
    """The name of a point at which a rank may take long."""
    return f"{what} {_MAY_TAKE_LONG}"


def _place(rank: Rank) -> str:
    if rank.dead:
        return "has died"
    if rank.ended:
        return "has ended" + (f" with {type(rank.error).__name__}" if rank.error is not None else "")
    return f"is at: {rank.pending.what}" if rank.pending is not None else "runs"


class _Present(threading.local):
    rank: Rank | None = None


_present = _Present()


def current() -> Rank:
    """The rank whose thread this is."""
    rank = _present.rank
    if rank is None:
        raise RuntimeError("this thread is no simulated rank")
    return rank


def is_rank() -> bool:
    """Whether this thread is a simulated rank."""
    return _present.rank is not None
