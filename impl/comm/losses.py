"""What this process knows of peers that have stopped, and which of them is the cause of a failure."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch.distributed as dist

from ..errors import SharedError

_LONGEST_TEXT = 500
#: A peer's last messages may still be on their way when its end is known: a wait is given that long to end well
GRACE_S = 1.0
#: ends that come so close together have one cause: a host, say, that takes several ranks with it
_TOGETHER_S = 1.0
_SETTLE_S = 0.1


class End(Enum):
    """How a peer stopped taking part."""

    SILENT = "silent"  # no sign of life for the detection time
    CLOSED = "closed"  # its connection ended without a word: the process is gone
    RAISED = "raised"  # its program ended with an exception of its own
    LEFT = "left"  # its program ended, or gave up the process group, in good order


@dataclass(frozen=True)
class Loss:
    """The end of one peer, as the first who noticed it tells all others."""

    rank: int  # global
    end: End
    where: str  # host and process, for people
    doing: str  # what it had last said that it was doing
    by: int  # the global rank that noticed
    text: str = ""  # of its exception

    def as_json(self) -> dict[str, object]:
        """For the others."""
        return {**vars(self), "end": self.end.value, "text": self.text[:_LONGEST_TEXT]}

    @staticmethod
    def from_json(said: dict[str, Any]) -> Loss:
        """What another rank has told; ValueError, KeyError or TypeError if that is no loss."""
        return Loss(**{**said, "end": End(said["end"])})

    def describe(self, name: str, detection_s: float) -> str:
        """What has happened to the rank that people know by this name."""
        match self.end:
            case End.SILENT:
                what = (
                    f"{name} has stopped answering: no sign of life for {detection_s:g} s or more, as rank {self.by} "
                    f"noticed ({self.where} is frozen, or its host or the network to it is down)"
                )
            case End.CLOSED:
                what = f"{name} has stopped answering ({self.where} was killed, or exited without an exception)"
            case End.RAISED:
                what = f"the program of {name} ({self.where}) has ended with {self.text}"
            case End.LEFT:
                what = f"{name} ({self.where}) {self.text}, in good order, and takes part in nothing more"
        return what + (f". The last thing it said it had started: {self.doing}" if self.doing else "")


def name_of(rank: int, global_rank: int) -> str:
    """A member of a group, for people: by its group rank, and by the global one where that is another number."""
    return f"rank {rank}" if rank == global_rank else f"rank {rank} (global rank {global_rank})"


def text_of(error: BaseException) -> str:
    """The beginning of an exception's text."""
    try:
        return str(error)[:_LONGEST_TEXT]
    except Exception as second:  # an exception of the user's whose text cannot be made must not hide itself
        return f"(its text raised {type(second).__name__})"


def add_note(error: BaseException, text: str) -> None:
    """Give an error a note. One of the user's that takes none must come out nevertheless."""
    with suppress(Exception):
        error.add_note(text)


def of_a_collective(error: BaseException | None) -> bool:
    """Whether an error looks like a collective's that failed, or follows from one: such a rank is only affected."""
    return any(map(_is_a_backends, chain_of(error)))


def follows_from_a_peer(error: BaseException | None) -> bool:
    """Whether it comes of a collective or of what all ranks of a block raise: another rank may be the cause."""
    return any(isinstance(each, SharedError) or _is_a_backends(each) for each in chain_of(error))


def chain_of(error: BaseException | None) -> list[BaseException]:
    """An error and those that it comes of."""
    chain: list[BaseException] = []
    while error is not None and all(error is not each for each in chain):
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _is_a_backends(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return not isinstance(error, dist.DistStoreError)
    return isinstance(error, RuntimeError) and "gloo/transport" in text_of(error)


class Losses:
    """The losses of one world as this process knows them, each with the time at which it learned of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._known: dict[int, tuple[Loss, float]] = {}
        #: ranks on which something failed because another had: they end, too, and are not to blame
        self._affected: set[int] = set()
        #: how often the survivors have formed a group anew; what failed before that is over
        self.epoch = 0

    def add(self, loss: Loss, now: float) -> bool:
        """Take note; False if this rank's end is known already."""
        with self._changed:
            if loss.rank in self._known:
                return False
            self._known[loss.rank] = (loss, now)
            self._changed.notify_all()
            return True

    def begin_anew(self) -> None:
        """The survivors go on: from now on each of them may be a cause again."""
        with self._changed:
            self._affected.clear()
            self.epoch += 1

    def add_affected(self, rank: int, epoch: int) -> bool:
        """This rank fails because of another; False if that is known, or was told before the group was formed anew."""
        with self._changed:
            if rank in self._affected or epoch != self.epoch:
                return False
            self._affected.add(rank)
            return True

    def is_affected(self, rank: int) -> bool:
        """Whether this rank fails because of another."""
        return rank in self._affected

    def has(self, rank: int) -> bool:
        """Whether this rank's end is known."""
        return rank in self._known

    def interrupting(self, ranks: Collection[int], now: float) -> list[Loss]:
        """The losses for which a wait is to be broken off now."""
        if not self._known:
            return []
        with self._changed:
            first = self._first(ranks)
            failed = not self._affected.isdisjoint(ranks)  # then a rank that has left in good order is missed, too
            counting = [each for each in first if failed or each[0].end is not End.LEFT]
            due = any(loss.end is End.SILENT or now - at >= GRACE_S for loss, at in counting)
            return [loss for loss, _ in first] if due else []

    def causes(self, ranks: Collection[int], limit_s: float) -> list[Loss]:
        """A collective has failed: the losses that explain it. Waits for them for ``limit_s`` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._with_own_cause(ranks), limit_s)
            self._changed.wait(_SETTLE_S)  # what happened at the same moment is named, too
            return [loss for loss, _ in self._first(ranks)]

    def _with_own_cause(self, ranks: Collection[int]) -> list[tuple[Loss, float]]:
        return [each for rank, each in self._known.items() if rank in ranks and rank not in self._affected]

    def _first(self, ranks: Collection[int]) -> list[tuple[Loss, float]]:
        """The earliest losses among these ranks that have a cause of their own; those in good order come last.

        Where there is none, an affected rank is what is missed: it had gone on after a failure, or failed elsewhere.
        """
        own = self._with_own_cause(ranks) or [each for rank, each in self._known.items() if rank in ranks]
        own = [each for each in own if each[0].end is not End.LEFT] or own
        start = min((at for _, at in own), default=0.0)
        return sorted((each for each in own if each[1] - start < _TOGETHER_S), key=lambda each: each[0].rank)
