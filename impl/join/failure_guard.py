"""What a session does about failures, its own rank's and those of its peers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from ..comm.guard import Guard, explain, guard_of
from ..comm.losses import of_a_collective
from ..comm.ranks import Team
from ..errors import CollectivesDiffer, InputsExhausted, PeerFailed, SharedError
from . import in_step
from .failures import FailureNotes


class FailureGuard:
    """Tells the peers of one session why this rank leaves it, and looks out for what they have told."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._notes: FailureNotes | None = None  # None until the block is entered: before, ranks need not be in step
        #: the shared error that was raised here, if one was
        self.over: tuple[type[SharedError], tuple[object, ...]] | None = None

    def begin(self) -> None:
        """The block begins. RuntimeError if an earlier failure has left the group unfit for it."""
        self._notes = FailureNotes.of(self._team)
        self._notes.make_sure_of_step()

    def watch(self, failure: Exception | None = None) -> None:
        """Raise ``PeerFailed`` if a peer has left the block by an exception, or is lost. A comm.pending.Watch.

        ``failure``: of a collective of this rank. Then it is found out which rank has stopped answering.
        """
        guard = guard_of(self._team.group)
        with self.sharing():
            self._read_notes(guard)
            try:
                if guard is not None:
                    guard(failure)
            except PeerFailed:
                self._read_notes(guard)  # one that has left by an exception says more
                raise

    def _read_notes(self, guard: Guard | None) -> None:
        """Raise ``PeerFailed`` if a peer has left by an exception; then this rank, too, only fails because of it."""
        if self._notes is None:
            return
        try:
            self._notes.watch()
        except PeerFailed:
            if guard is not None:
                guard.mark_affected()
            raise

    def report(self, error: BaseException) -> None:
        """This rank leaves by ``error``: tell the peers, or tell the error of the peer that failed first."""
        if self._notes is None:
            return
        if not isinstance(error, InputsExhausted):
            in_step.doubt(self._team)
        if self._is_known(error):
            return
        first = self._notes.first()
        if first is not None and not first.is_of(self._team.rank):
            error.add_note(f"Join: before this, {first}. That failure may be the cause.")
        elif of_a_collective(error) and self._team.size > 1:
            self._explain(error)
        elif first is None:
            self._notes.leave(error)

    def _is_known(self, error: BaseException) -> bool:
        """Whether all ranks of this session learn of the error without this one's note."""
        if (isinstance(error, SharedError) and error.shared_in is self) or isinstance(error, CollectivesDiffer):
            return True
        guard = guard_of(self._team.group)
        return isinstance(error, PeerFailed) and guard is not None and bool(guard.lost())

    def _explain(self, error: BaseException) -> None:
        """Say in a note what made a collective fail, unless one says so already."""
        notes, guard = getattr(error, "__notes__", ()), guard_of(self._team.group)
        if guard is not None and guard.unexplained() in notes:
            return  # the wait that failed has looked for the cause for as long as it may
        cause = explain(self._team.group)
        if cause not in notes:
            error.add_note(cause)
        if guard is not None and cause == guard.unexplained() and self._notes is not None:
            self._notes.leave(error)  # of a collective on another group, perhaps: nobody here would learn of it

    def mark_shared(self, error: SharedError) -> None:
        """All ranks of this session raise this error by themselves, so nobody is left to go on with."""
        error.shared_in = self
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
        """Throwing mode: so many other ranks have run out."""
        self._raise_exhausted(
            "Detected at least one rank that exhausted inputs. Throwing across all ranks. "
            f"({count} of {self._team.size} ran out while rank {self._team.rank} still has some. This iteration has "
            "not begun. Give all ranks equally many inputs, or use throw_on_early_termination=False to train on uneven "
            "inputs.)"
        )

    def _raise_exhausted(self, text: str) -> NoReturn:
        with self.sharing():
            raise InputsExhausted(text)
