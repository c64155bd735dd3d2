"""Failure notes: how the peers of a rank that leaves a context by an exception learn of it without a collective."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import torch.distributed as dist

from ..comm import store as stores
from ..comm.ranks import Team
from ..errors import PeerFailed
from . import in_step

_LONGEST_TEXT = 500

#: How many enabled contexts each group has entered, by the group's name. It never starts over, not even for a new
#: group of an old name, so that a note of the past is never taken for one of now. Only ``next_passage`` changes it.
_passages: dict[str, int] = {}


def next_passage(team: Team) -> str:
    """A key for the passage that begins now. Equal on all ranks, since they enter the contexts of a group together."""
    name = str(team.group.group_name)
    _passages[name] = _passages.get(name, 0) + 1
    return f"join/{name}/{_passages[name]}"


@dataclass(frozen=True)
class Note:
    """What a failed rank left behind."""

    rank: int  # in the group
    global_rank: int
    kind: str  # class of the exception
    text: str

    def __str__(self) -> str:
        place = f"rank {self.rank}" + (f" (global rank {self.global_rank})" if self.global_rank != self.rank else "")
        return f"{place} left the join context with {self.kind}" + (f": {self.text}" if self.text else "")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception as second:  # an exception of the user's whose text cannot be made must not hide itself
        return f"(its text raised {type(second).__name__})"


class FailureNotes:
    """The notes of one passage through a context. Without a store it keeps silent and the group's timeout decides."""

    def __init__(self, team: Team, key: str, store: dist.Store | None) -> None:
        self._team = team
        self._key = key
        self._store = store

    @staticmethod
    def of(team: Team) -> FailureNotes:
        """The notes of the passage that this rank begins now."""
        return FailureNotes(team, next_passage(team), stores.beside_the_group())

    def make_sure_of_step(self) -> None:
        """RuntimeError, and a note of it, if what an earlier failure has left behind would be mixed with what comes."""
        try:
            in_step.make_sure(self._team, self._key, self._store)
        except RuntimeError as error:
            self.leave(error)
            raise

    def leave(self, error: BaseException) -> None:
        """Tell whoever looks that this rank left by ``error``. Only the first note of a passage is kept."""
        rank = self._team.rank
        note = Note(int(rank), int(self._team.global_rank(rank)), type(error).__name__, _text_of(error))
        if self._store is None:
            return
        try:
            if self._store.add(f"{self._key}/writers", 1) == 1:
                self._store.set(f"{self._key}/note", json.dumps(asdict(note)))
        except RuntimeError as lost:  # the store's host is gone; the error that is being reported matters more
            error.add_note(f"Join could not tell the other ranks, whose waits now end by timeout: {lost}")
            self._store = None

    def first(self) -> Note | None:
        """The first note, if some rank has left one. Never waits for one."""
        if self._store is None:
            return None
        try:
            if not self._store.check([f"{self._key}/note"]):
                return None
            return Note(**json.loads(self._store.get(f"{self._key}/note")))
        except RuntimeError:  # the store's host is gone; the collective will fail by itself
            self._store = None
            return None

    def watch(self) -> None:
        """Raise ``PeerFailed`` if another rank has left by an exception. A comm.pending.Watch."""
        note = self.first()
        if note is not None and note.rank != self._team.rank:
            raise PeerFailed(
                f"Join: {note}. It takes part in no further collective, so rank {self._team.rank} stops waiting for "
                "it. Usual cause: an error in the training loop of that rank alone, such as a bad batch or too little "
                f"memory. Look for the first error in that rank's log. {in_step.REMEDY}"
            )
