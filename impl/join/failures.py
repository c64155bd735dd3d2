"""Notes that ranks leave in the group's store when they leave a join context by an error, so that peers learn of it.

A rank that is killed or freezes leaves no note: that is the failure guard's (comm/guard.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..comm.guard import REMEDY, store_with_deadline
from ..comm.losses import text_of
from ..comm.ranks import Team
from ..comm.store import StoreWithDeadline
from ..errors import PeerFailed
from . import in_step
from .standing import standing_of


@dataclass(frozen=True)
class Note:
    """What a rank left behind that failed by itself."""

    rank: int  # in the group
    global_rank: int
    kind: str  # class of the exception
    text: str

    def __str__(self) -> str:
        return f"{_place(self.rank, self.global_rank)} left the join context with {self.kind}" + (
            f": {self.text}" if self.text else ""
        )

    def is_of(self, reader: int) -> bool:
        """Whether it is about the rank that reads it."""
        return self.rank == reader

    def advice(self, reader: int) -> str:
        """What the other ranks should know beyond that."""
        return (
            f"It takes part in no further collective, so rank {reader} stops waiting for it. Usual cause: an error in "
            "the training loop of that rank alone, such as a bad batch or too little memory. Look for the first error "
            "in that rank's log."
        )


def _place(rank: int, global_rank: int) -> str:
    return f"rank {rank}" + (f" (global rank {global_rank})" if global_rank != rank else "")


class FailureNotes:
    """The notes of one session. Without a store it keeps silent and the group's timeout decides.

    Keys: ``bell``, set with any note, is all that is looked at while nothing is wrong; ``note`` holds the first one,
    ``writers`` who may write it.
    """

    def __init__(self, team: Team, key: str, store: StoreWithDeadline | None) -> None:
        self._team = team
        self._key = key
        self._store = store

    @staticmethod
    def of(team: Team) -> FailureNotes:
        """The notes of the session that this rank begins now."""
        return FailureNotes(team, standing_of(team).next_session(), store_with_deadline(team.group))

    def make_sure_of_step(self) -> None:
        """RuntimeError, and a note of it, if what an earlier failure has left behind would be mixed with what comes."""
        try:
            in_step.make_sure(self._team, self._key, self._store)
        except PeerFailed:
            raise
        except RuntimeError as error:
            self.leave(error)
            raise

    def leave(self, error: BaseException) -> None:
        """Tell whoever looks that this rank left by ``error``. Only the first note of a session is kept."""
        if self._store is None:
            return
        rank = self._team.rank
        try:
            self._write(Note(int(rank), int(self._team.global_rank(rank)), type(error).__name__, text_of(error)))
        except RuntimeError as lost:  # the store's host is gone or frozen; the reported error matters more
            error.add_note(f"Join could not tell the other ranks, whose waits now end by timeout: {lost}")
            self._store = None

    def first(self) -> Note | None:
        """The first note, if some rank has left one. Never waits for one."""
        if self._store is None:
            return None
        try:
            return self._read(self._store)
        except RuntimeError:  # the store's host is gone or frozen: the guard goes on
            self._store = None
            return None

    def watch(self) -> None:
        """Raise ``PeerFailed`` if another rank has left by an exception."""
        try:
            if self._store is None or not self._store.check([f"{self._key}/bell"]):
                return
            note = self._read(self._store)
        except RuntimeError:  # the store's host is gone or frozen: the guard goes on
            self._store = None
            return
        if note is not None and not note.is_of(self._team.rank):
            raise PeerFailed(f"Join: {note}. {note.advice(self._team.rank)} {REMEDY}")

    # in the store; each may raise RuntimeError where its host is gone

    def _read(self, store: StoreWithDeadline) -> Note | None:
        if not store.check([f"{self._key}/note"]):
            return None
        return Note(**json.loads(store.get(f"{self._key}/note")))

    def _write(self, note: Note) -> None:
        assert self._store is not None
        if self._store.add(f"{self._key}/writers", 1) == 1:
            self._store.set(f"{self._key}/note", json.dumps(asdict(note)))
            self._store.set(f"{self._key}/bell", "")
