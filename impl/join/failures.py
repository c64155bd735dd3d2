"""What a session does about failures, its own rank's and those of its peers.

A rank that leaves a join context by an error leaves a note in the group's store, so that peers learn of it. A rank that
is killed or freezes leaves none: that is the failure guard's (comm/guard.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import NoReturn

from ..comm.guard import REMEDY, detection_s, explain, store_with_deadline
from ..comm.local_groups import global_ranks_of
from ..comm.losses import add_note, chain_of, name_of, of_a_collective, text_of
from ..comm.ranks import Team
from ..comm.store import StoreWithDeadline
from ..errors import CollectivesDiffer, InputsExhausted, PeerFailed, RanksDisagree, SharedError
from . import in_step
from .group_record import record_of


@dataclass(frozen=True)
class Note:
    """What a rank left behind that failed by itself."""

    rank: int  # in the group
    global_rank: int
    kind: str  # class of the exception
    text: str
    started: int  # collectives of the group that it had started before
    label: str  # of the last of these

    def __str__(self) -> str:
        return f"{name_of(self.rank, self.global_rank)} left the join context with {self.kind}" + (
            f": {self.text}" if self.text else ""
        )


class FailureNotes:
    """The notes of one session, of which the store keeps the first. Without one the group's timeout decides."""

    def __init__(self, team: Team, key: str, store: StoreWithDeadline | None) -> None:
        self._team = team
        self._key = key
        self._note = f"{key}/note"
        self._store = store
        #: when this rank first met another's note in a wait that could be waited on
        self._met: float | None = None

    def make_sure_of_step(self) -> None:
        """RuntimeError, and a note of it, if what an earlier failure has left behind would be mixed with what comes."""
        try:
            in_step.make_sure(self._team)
        except PeerFailed:
            raise
        except RuntimeError as error:
            self.leave(error)
            raise

    def end(self) -> None:
        """The session is over for this rank."""
        in_step.tell(self._team, self._key, self._store)

    def leave(self, error: BaseException) -> None:
        """Leave a note that this rank left by ``error``. Only the first note of a session is kept."""
        if self._store is None:
            return
        rank = self._team.rank
        try:
            place, tally = self._team.global_rank(rank), self._team.tally
            note = Note(int(rank), int(place), type(error).__name__, text_of(error), tally.started, tally.label)
            self._store.compare_set(self._note, "", json.dumps(asdict(note)))  # if there is none
        except RuntimeError as lost:  # the store's host is gone or frozen; the reported error matters more
            add_note(error, f"Join could not tell the other ranks, whose waits now end by timeout: {lost}")
            self._store = None

    def first(self) -> Note | None:
        """The first note, if some rank has left one. Never waits for one."""
        if self._store is None:
            return None
        try:
            return Note(**json.loads(self._store.get(self._note))) if self._store.check([self._note]) else None
        except RuntimeError:  # the store's host is gone or frozen: the guard goes on
            self._store = None
            return None

    def watch(self, *, waits: bool) -> None:
        """Raise ``PeerFailed`` if another rank has left by an exception, or what it has learned of all ranks.

        Not where this one ``waits`` for what all who have left have taken part in: it goes on to where they left,
        perhaps by an error of its own there.
        """
        note, store = self.first(), self._store
        if note is None or store is None or note.rank == self._team.rank:
            return
        if note.kind == RanksDisagree.__name__:
            raise RanksDisagree(note.text)
        if not (waits and self._all_have_taken_part(note, store)):
            raise PeerFailed(
                f"Join: {note}. It takes part in no further collective, so rank {self._team.rank} stops waiting for "
                "it. Usual cause: an error in the training loop of that rank alone, such as a bad batch or too little "
                f"memory. Look for the first error in that rank's log. {REMEDY}"
            )

    def _all_have_taken_part(self, note: Note, store: StoreWithDeadline) -> bool:
        """Whether all that have left have started all that this one has, perhaps something else: so not for ever."""
        tally = self._team.tally
        if note.started < tally.started or (note.started == tally.started and note.label != tally.label):
            return False
        if in_step.is_left_behind(self._team, self._key, store):
            return False
        now = time.monotonic()
        self._met = now if self._met is None else self._met
        return now - self._met < detection_s()


_of_thread = threading.local()


def _entered_here() -> list[FailureNotes]:
    """The notes of the blocks that this thread is in, on whatever group, the innermost last."""
    notes: list[FailureNotes] = _of_thread.__dict__.setdefault("notes", [])
    return notes


class SessionFailures:
    """Tells the peers of one session why this rank leaves it, and looks out for what they have told."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._mark = object()  # on errors that all ranks of this session raise
        self._notes = FailureNotes(team, "", None)  # until the block is entered: before, ranks need not be in step
        self._entered: list[FailureNotes] = []  # those of the blocks of this one's thread
        self._around: tuple[FailureNotes, ...] = ()  # of the blocks around this one: who has failed there comes to none
        self._failed = False  # whether this rank leaves by an error, after which the ranks need not be in step
        #: the shared error that was raised here, if one was
        self.over: tuple[type[SharedError], tuple[object, ...]] | None = None

    def begin(self) -> None:
        """The block begins. RuntimeError if an earlier failure has left the group unfit for it."""
        key, store = record_of(self._team).next_session_key(), store_with_deadline(self._team.group)
        self._notes = FailureNotes(self._team, key, store)
        self._entered = _entered_here()
        self._around = tuple(self._entered)
        self._entered.append(self._notes)
        self._notes.make_sure_of_step()

    def end(self) -> None:
        """The block is left."""
        if self._notes in self._entered:
            self._entered.remove(self._notes)
            self._notes.end()
            if self._failed:
                in_step.doubt(self._team)

    def watch(self, failure: Exception | None = None, *, in_collective: bool = True) -> None:
        """Raise ``PeerFailed`` if a peer has left the block by an exception, or is lost. A comm.pending.Watch.

        ``failure``: of a collective of this rank. Then it is found out which rank has stopped answering.
        ``in_collective``: this rank waits for one, in which the peer may have taken part before it left.
        """
        guard = self._team.guard
        with self.sharing():
            self._read_notes(waits=in_collective and failure is None)
            if guard is not None:
                guard(failure)

    def _read_notes(self, *, waits: bool) -> None:
        """Raise ``PeerFailed`` if a peer has left by an exception; then this rank, too, only fails because of it."""
        try:
            for notes in (self._notes, *self._around):
                notes.watch(waits=waits)
        except PeerFailed:
            if self._team.guard is not None:
                self._team.guard.mark_affected()
            raise

    def report(self, error: BaseException) -> None:
        """This rank leaves by ``error``: tell the peers, or tell the error of the peer that failed first."""
        self._failed = True
        if self._is_known(error):
            return
        first = self._notes.first()
        if first is not None and first.rank != self._team.rank:
            add_note(error, f"Join: before this, {first}. That failure may be the cause.")
        elif of_a_collective(error) and self._team.size > 1:
            self._explain(error)
        elif first is None:
            self._notes.leave(error)

    def _is_known(self, error: BaseException) -> bool:
        """Whether all ranks of this session learn of the error without this one's note."""
        if isinstance(error, SharedError) and error.shared_in is self._mark:
            return True
        if isinstance(error, CollectivesDiffer):
            return error.among.issuperset(global_ranks_of(self._team.group))
        guard = self._team.guard
        of_a_peer = any(isinstance(each, PeerFailed) for each in chain_of(error))
        return of_a_peer and guard is not None and bool(guard.lost())

    def _explain(self, error: BaseException) -> None:
        """Say in a note what made a collective fail, unless one says so already."""
        notes, guard = getattr(error, "__notes__", ()), self._team.guard
        # a wait that failed, or a block inside this one, may have looked for the cause for as long as it may
        if guard is None or guard.unexplained() not in notes:
            cause = explain(self._team.group)
            if cause not in notes:
                add_note(error, cause)
        if not self._team.tally.failed and (guard is None or not guard.lost()):
            self._notes.leave(error)  # of a collective on another group: nobody here would learn of it

    def mark_shared(self, error: SharedError) -> None:
        """All ranks of this session raise this error, so nobody is left to go on with.

        Of ranks that disagree one may wait, before it reads the message, in what the others take no part in.
        """
        if isinstance(error, RanksDisagree):
            self._notes.leave(error)
        error.shared_in = self._mark
        self.over = type(error), error.args

    def refuse_what_is_over(self) -> None:
        """Raise again what has ended the session, should the program have caught it inside the block."""
        if self.over is not None:
            kind, args = self.over
            with self.sharing():
                raise kind(*args)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Mark shared errors that are raised inside."""
        try:
            yield
        except SharedError as error:
            self.mark_shared(error)
            raise

    def raise_exhausted_here(self) -> NoReturn:
        """Throwing mode: this rank has run out, others have not."""
        self._raise_exhausted(
            f"Rank {self._team.rank} exhausted all inputs. Other ranks still have some, and the join context was asked "
            "to throw on early termination, so every rank raises now. Give all ranks equally many inputs, or use "
            "throw_on_early_termination=False to train on uneven inputs."
        )

    def raise_exhausted_elsewhere(self, count: int) -> NoReturn:
        """Throwing mode: ``count`` other ranks have run out."""
        self._raise_exhausted(
            "Detected at least one rank that exhausted inputs. Throwing across all ranks. "
            f"({count} of {self._team.size} ran out while rank {self._team.rank} still has some. This iteration has "
            "not begun. Give all ranks equally many inputs, or use throw_on_early_termination=False to train on uneven "
            "inputs.)"
        )

    def _raise_exhausted(self, text: str) -> NoReturn:
        with self.sharing():
            raise InputsExhausted(text)
