"""Words that ranks leave in the group's store when a join context fails, so that their peers learn of it at once.

A rank that leaves by an error of its own leaves a note of it. A rank that is killed leaves nothing: its peers lose
their connections to it, and to each other as soon as the first of them has gone, so a lost connection does not say
whose fault it is. A rank that loses one says so, everybody who hears of it answers, and who has not answered after two
seconds has stopped doing so. One rank, the first to ask, decides that; all others read its finding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch.distributed as dist

from ..comm import store as stores
from ..comm.ranks import GroupRank, Team
from ..errors import PeerFailed
from . import in_step
from .standing import standing_of

_LONGEST_TEXT = 500
#: how long a rank may take to answer. Who waits inside the context looks every second at least (comm/pending.py)
_ANSWER_WITHIN_S = 2.0
_LOOK_FOR_ANSWERS_EVERY_S = 0.05
_UNKNOWN = (
    "Join: which rank has failed is not known, for the store in which ranks leave word has gone, too, or there is "
    "none. It is rank 0's process as a rule that keeps it: look at the end of that rank's log first."
)


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


@dataclass(frozen=True)
class Finding:
    """Who has not answered after a collective had failed."""

    silent: Sequence[int]  # ranks in the group
    global_ranks: Sequence[int]  # the same ones
    asker: int  # whose collective failed
    text: str  # its error

    def __str__(self) -> str:
        silent = " and ".join(map(_place, self.silent, self.global_ranks))
        if not self.silent:
            return f"a collective failed on rank {self.asker}, and every rank still answers: the cause is not known"
        if len(self.silent) == 1:
            return f"{silent} has stopped answering (killed, or exited without an exception)"
        return (
            f"{silent} have not answered within {_ANSWER_WITHIN_S:g} s. At least one of them has stopped (killed, or "
            "exited without an exception); which one is not known, for a rank that computes answers late"
        )

    def advice(self, reader: int) -> str:
        """What the other ranks should know beyond that."""
        if self.silent:
            cause = "killed by the system for want of memory, or its machine went down. Look at the end of its log"
        else:
            cause = "a network that failed for a moment, or a timeout of the group that is too short"
        return f"Rank {self.asker} noticed it by: {self.text}. Usual cause: {cause}."

    def is_of(self, _reader: int) -> bool:
        """Whether it is about the rank that reads it."""
        return False


def _place(rank: int, global_rank: int) -> str:
    return f"rank {rank}" + (f" (global rank {global_rank})" if global_rank != rank else "")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception as second:  # an exception of the user's whose text cannot be made must not hide itself
        return f"(its text raised {type(second).__name__})"


def of_a_collective(error: BaseException | None) -> bool:
    """Whether an error looks like a collective's that failed, or follows from one: such a rank is but a witness."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        backends = isinstance(error, dist.DistError) and not isinstance(error, dist.DistStoreError)
        if backends or (isinstance(error, RuntimeError) and "gloo/transport" in _text_of(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


class FailureNotes:
    """The notes of one session. Without a store it keeps silent and the group's timeout decides.

    Keys: ``bell``, set with any word, is all that is looked at while nothing is wrong; ``word`` holds the first note
    or the finding, ``writers`` who may write it; ``alive/RANK`` that this rank is not the one that stopped.
    """

    def __init__(self, team: Team, key: str, store: dist.Store | None) -> None:
        self._team = team
        self._key = key
        self._store = store
        self._answered = False

    @staticmethod
    def of(team: Team) -> FailureNotes:
        """The notes of the session that this rank begins now."""
        return FailureNotes(team, standing_of(team).next_session(), stores.beside(team.group))

    def make_sure_of_step(self) -> None:
        """RuntimeError, and a note of it, if what an earlier failure has left behind would be mixed with what comes."""
        try:
            in_step.make_sure(self._team, self._key, self._store)
        except RuntimeError as error:
            self.leave(error)
            raise

    def leave(self, error: BaseException) -> None:
        """Tell whoever looks that this rank left by ``error``. Only the first word of a session is kept."""
        if self._store is None:
            return
        rank = self._team.rank
        try:
            self._write(Note(int(rank), int(self._team.global_rank(rank)), type(error).__name__, _text_of(error)))
        except RuntimeError as lost:  # the store's host is gone; the error that is being reported matters more
            error.add_note(f"Join could not tell the other ranks, whose waits now end by timeout: {lost}")
            self._store = None

    def answer(self) -> None:
        """This rank is about to leave by an error that all ranks meet, and has not stopped answering."""
        if self._store is None or self._answered:
            return
        try:
            self._answer(self._store)
        except RuntimeError:
            self._store = None

    def first(self) -> Note | Finding | None:
        """The first word, if some rank has left one. Never waits for one."""
        if self._store is None:
            return None
        try:
            return self._read(self._store)
        except RuntimeError:  # the store's host is gone; the collective will fail by itself
            self._store = None
            return None

    def watch(self) -> None:
        """Raise ``PeerFailed`` if another rank has left by an exception or stopped answering."""
        try:
            if self._store is None or not self._store.check([f"{self._key}/bell"]):
                return
            word = self._heard(self._store)
        except RuntimeError:  # the store's host is gone; the collective will fail by itself
            self._store = None
            return
        self._raise(word)

    def ask(self, error: BaseException) -> Note | Finding | None:
        """A collective has failed on this rank: find out whose fault that is. Takes a little more than two seconds.

        Where that is not to be known the error gets a note that says so.
        """
        if self._team.size == 1:
            return None
        if self._store is not None:
            try:
                word = self._heard(self._store, _text_of(error))
                if word is not None:
                    return word
            except RuntimeError:
                self._store = None
        if _UNKNOWN not in getattr(error, "__notes__", ()):
            error.add_note(_UNKNOWN)
        return None

    def lost(self, error: Exception) -> None:
        """The same, raising ``PeerFailed`` with what was found."""
        self._raise(self.ask(error))

    def _raise(self, word: Note | Finding | None) -> None:
        if word is not None and not word.is_of(self._team.rank):
            raise PeerFailed(f"Join: {word}. {word.advice(self._team.rank)} {in_step.REMEDY}")

    # in the store; each may raise RuntimeError where its host is gone

    def _read(self, store: dist.Store) -> Note | Finding | None:
        if not store.check([f"{self._key}/word"]):
            return None
        word = json.loads(store.get(f"{self._key}/word"))
        return Finding(**word) if "silent" in word else Note(**word)

    def _write(self, word: Note | Finding) -> None:
        assert self._store is not None
        if self._store.add(f"{self._key}/writers", 1) == 1:
            self._store.set(f"{self._key}/word", json.dumps(asdict(word)))
        self._store.set(f"{self._key}/bell", "")

    def _answer(self, store: dist.Store) -> None:
        self._answered = True
        store.set(f"{self._key}/alive/{self._team.rank}", "")

    def _heard(self, store: dist.Store, error: str = "") -> Note | Finding | None:
        """Answer, and wait for the word that says what has happened. ``error``: this rank's own, if one is known."""
        word = self._read(store)
        if word is not None:
            return word
        self._answer(store)
        if error and store.add(f"{self._key}/askers", 1) == 1:
            store.set(f"{self._key}/bell", "")
            return self._found(store, error)
        try:
            store.wait([f"{self._key}/word"], timedelta(seconds=2 * _ANSWER_WITHIN_S))  # type: ignore[attr-defined]
        except RuntimeError:  # the one that asked has stopped answering itself, or the store has
            return self._found(store, error or "a collective failed on a rank that has stopped, too")
        return self._read(store)

    def _found(self, store: dist.Store, error: str) -> Note | Finding | None:
        """Wait for all ranks' answers, two seconds at most, and write down who has not given one."""
        silent = [rank for rank in self._team.members if rank != self._team.rank]
        end = time.monotonic() + _ANSWER_WITHIN_S
        while silent and time.monotonic() < end and self._read(store) is None:
            time.sleep(_LOOK_FOR_ANSWERS_EVERY_S)
            silent = [rank for rank in silent if not store.check([f"{self._key}/alive/{rank}"])]
        everywhere = [int(self._team.global_rank(GroupRank(rank))) for rank in silent]
        self._write(Finding(silent, everywhere, int(self._team.rank), error))
        store.wait([f"{self._key}/word"], timedelta(seconds=_ANSWER_WITHIN_S))  # type: ignore[attr-defined]
        return self._read(store)
