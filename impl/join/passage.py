"""One rank's passage through a join context: its phase, and what it does about failures, its own and its peers'."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import torch

from ..comm.ranks import Team
from ..errors import InputsExhausted, SharedError
from . import in_step
from .failures import FailureNotes, of_a_collective
from .lifecycle import PHASES, Phase, moved

if TYPE_CHECKING:
    from .handle import Handle
    from .hooks import Joinable

#: A joined rank that has shadowed more iterations than this warns about the skew, once (JOIN-035).
SKEW_WARNING_ABOVE = 1000


class Passage(ABC):
    """What plain and followed contexts have in common.

    A passage begins when the joinables are stamped, before the block is entered (JOIN-013), and ends with the block.
    """

    def __init__(self, team: Team, device: torch.device, throw: bool) -> None:
        self.team = team
        self.device = device
        self.throw = throw
        self._phase = Phase.LIVE  # only _move assigns it
        self._notes: FailureNotes | None = None  # None until the block is entered: before, ranks need not be in step
        self._warned_of_skew = False

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def shadowing(self) -> bool:
        """Whether this rank has run out of inputs and follows the ranks that have not."""
        return self._phase is Phase.SHADOWING

    @abstractmethod
    def notify(self, joinable: Joinable) -> Handle | None:
        """What ``Join.notify_join_context`` does on a stamped joinable."""

    @abstractmethod
    def shadow(self) -> bool:
        """Follow the live ranks until nobody is live. True if this rank was among the last."""

    def enter(self) -> None:
        """The block begins. RuntimeError if an earlier failure has left the group unfit for it."""
        self._notes = FailureNotes.of(self.team)
        self._notes.make_sure_of_step()

    def end(self) -> None:
        """Everybody has run out; the post hooks come next, and notifications are vacuous."""
        self._move(Phase.ENDING)

    def close(self) -> None:
        """The block is left, in whatever way."""
        self._move(Phase.CLOSED)

    def watch(self, failure: Exception | None = None) -> None:
        """Raise ``PeerFailed`` if a peer has left the block by an exception. A comm.pending.Watch.

        ``failure``: of a collective of this rank. Then it is found out which rank has stopped answering.
        """
        if self._notes is not None:
            with self._shared():
                if failure is None:
                    self._notes.watch()
                else:
                    self._notes.lost(failure)

    def report(self, error: BaseException) -> None:
        """This rank leaves by ``error``: tell the peers, or tell the error of the peer that failed first."""
        if self._notes is None:
            return
        if not isinstance(error, InputsExhausted):
            in_step.doubt(self.team)
        if isinstance(error, SharedError) and error.passage is self:
            self._notes.answer()
            return
        first = self._notes.ask(error) if of_a_collective(error) else self._notes.first()
        if first is None:
            self._notes.leave(error)
        elif not first.is_of(self.team.rank):
            error.add_note(f"Join: before this, {first}. That failure may be the cause.")

    @contextmanager
    def _shared(self) -> Iterator[None]:
        """Mark shared errors raised inside as known to all ranks of this passage."""
        try:
            yield
        except SharedError as error:
            error.passage = self
            raise

    def _move(self, to: Phase) -> None:
        self._phase = moved(self._phase, to, PHASES)

    def _raise_exhausted_here(self) -> NoReturn:
        self._raise_exhausted(
            f"Rank {self.team.rank} exhausted all inputs. Other ranks still have some, and the join context was asked "
            "to throw on early termination, so every rank raises now. Give all ranks equally many inputs, or use "
            "throw_on_early_termination=False to train on uneven inputs."
        )

    def _raise_exhausted_elsewhere(self, count: int) -> NoReturn:
        self._raise_exhausted(
            "Detected at least one rank that exhausted inputs. Throwing across all ranks. "
            f"({count} of {self.team.size} ran out while rank {self.team.rank} still has some. This iteration has not "
            "begun. Give all ranks equally many inputs, or use throw_on_early_termination=False to train on uneven "
            "inputs.)"
        )

    def _raise_exhausted(self, text: str) -> NoReturn:
        with self._shared():
            raise InputsExhausted(text)

    def _warn_of_skew(self, shadowed: int, *, deeper: int = 0) -> None:
        """Warn at the user's with statement; ``deeper``: so many calls more lie between it and here than usually."""
        if shadowed <= SKEW_WARNING_ABOVE or self._warned_of_skew:
            return
        self._warned_of_skew = True
        warnings.warn(
            f"Rank {self.team.rank} has shadowed more than {SKEW_WARNING_ABOVE} iterations of ranks that had more "
            f"inputs: the inputs are skewed by over {SKEW_WARNING_ABOVE} iterations. The time of this rank is lost. "
            "Consider spreading the inputs more evenly over the ranks.",
            UserWarning,
            stacklevel=6 + deeper,
        )
