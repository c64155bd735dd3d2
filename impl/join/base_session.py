"""What the sessions of plain and of followed contexts share: state, failures, the warning of a skew."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch

from ..comm.ranks import Team
from ..comm.tally import Block
from .channel import ControlChannel
from .failures import SessionFailures
from .handle import Handle
from .hooks import Joinable
from .lifecycle import SESSION_MOVES, SessionState, moved
from .message import DEEPEST, MessageLayout

#: A joined rank that has shadowed more iterations than this warns about the skew, once (JOIN-035).
SKEW_WARNING_ABOVE = 1000


class BaseSession(ABC):
    """One rank's way through a join context.

    A session begins when it is put on the joinables, before the block is entered (JOIN-013), and ends with the block.
    """

    def __init__(self, team: Team, device: torch.device, throw: bool, layout: MessageLayout) -> None:
        self.team = team
        self.throw = throw
        self._failures = SessionFailures(team)
        self._layout = layout
        self._channel = ControlChannel(team, device, layout, self._failures.mark_shared)
        self._state = SessionState.LIVE  # only _move assigns it
        self._warned_of_skew = False

    def __reduce__(self) -> Any:
        """A copy of a joinable is in no block, nor is one that is loaded: as in torch it keeps its config alone."""
        return type(None), ()

    @property
    def live(self) -> bool:
        """Whether this rank has inputs."""
        return self._state is SessionState.LIVE

    @property
    def shadowing(self) -> bool:
        """Whether this rank has run out of inputs and follows the ranks that have not."""
        return self._state is SessionState.SHADOWING

    @abstractmethod
    def notify(self, joinable: Joinable) -> Handle | None:
        """What ``Join.notify_join_context`` does on a joinable of this session."""

    @abstractmethod
    def shadow(self) -> bool:
        """Follow the live ranks until nobody is live. True if this rank was among the last."""

    def watch(self, failure: Exception | None = None, *, in_collective: bool = True) -> None:
        """To be handed to waits: raise ``PeerFailed`` if a peer has left the block by an exception."""
        self._failures.watch(failure, in_collective=in_collective)

    def enter(self) -> None:
        """The block begins. RuntimeError if an earlier failure has left the group unfit for it."""
        self._failures.begin()
        self.team.tally.blocks.append(self._block)

    @property
    def _block(self) -> Block:
        return Block(self.watch, self._layout.size)

    def _tell_place(self, listed: int | None = None) -> None:
        """Messages tell from now on how deep the block lies in others, and the first one what it lists.

        Only where none is in flight.
        """
        self._layout = replace(self._layout, depth=min(len(self.team.tally.blocks) - 1, DEEPEST), listed=listed)
        self._channel.lay_out(self._layout)

    def report(self, error: BaseException) -> None:
        """This rank leaves the block by ``error``: tell the peers."""
        self._failures.report(error)
        self.team.abandon()  # they need not begin what this rank has begun

    def end(self) -> None:
        """Everybody has run out; the post hooks come next, and notifications are vacuous."""
        self._move(SessionState.ENDING)

    def close(self) -> None:
        """The block is left, in whatever way."""
        blocks = self.team.tally.blocks
        if self._block in blocks:
            blocks.remove(self._block)
        self._failures.end()
        self._move(SessionState.CLOSED)

    def _move(self, to: SessionState) -> None:
        self._state = moved(self._state, to, SESSION_MOVES)

    def _warn_of_skew(self, shadowed: int, *, deeper: int = 0) -> None:
        """Warn, at the user's with statement. ``deeper``: how many more calls than usual lie between that and here."""
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
